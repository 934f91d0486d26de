# Functions of the scripts that ask caravan serve, which source this file after common.sh.

# serve NAME MODEL OPTION...: starts a server, and sets $port and $server.
serve() {
    local name=$1 model=$2
    shift 2
    "$bin/caravan" serve "$model" --name start --listen 127.0.0.1:0 --frames min_pixels=3136 --frames max_pixels=3136 "$@" 2>"$work/$name.err" &
    server=$!
    wait_for_line "$work/$name.err" 'serving .* at http'
    port=$(sed -n 's,.*http://127.0.0.1:\([0-9]*\)/v1,\1,p' "$work/$name.err")
}
# say METHOD PATH BODY [HEADER...]: sends a request and prints the whole answer.
say() {
    local method=$1 path=$2 body=$3
    shift 3
    exec 5<>"/dev/tcp/127.0.0.1/$port"
    { printf '%s %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nConnection: close\r\nContent-Length: %d\r\n' "$method" "$path" "$port" "$(printf '%s' "$body" | wc -c)"
        [ $# = 0 ] || printf '%s\r\n' "$@"
        printf '\r\n%s' "$body"; } >&5
    cat <&5
    exec 5>&-
}
json='Content-Type: application/json'
key='Authorization: Bearer secret'
hello='"model":"start","messages":[{"role":"user","content":"Hello"}]'
# begin FD TOKENS [MEMBERS]: sends a request, with the key, for a stream.
begin() {
    local body="{$hello,\"stream\":true,\"temperature\":0,\"max_tokens\":$2${3-}}"
    eval "exec $1<>/dev/tcp/127.0.0.1/$port"
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:%s\r\n%s\r\n%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' "$port" "$json" "$key" ${#body} "$body" >&"$1"
}
# has_room: a request, with the key, is answered.
has_room() { [[ $(say POST /v1/chat/completions "{$hello,\"max_tokens\":1}" "$json" "$key") == 'HTTP/1.1 200 '* ]]; }
