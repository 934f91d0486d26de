# caravan view beside a run: what the page is told is what the other subcommands say; only who has the token sees it; the run
# trains the same weights, and nothing of it is changed.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline ""
run alone || fail "alone: $(cat "$work/alone.err")"
want=$(weights_of alone)

# view OPERAND...: starts it; $port and $token are those of its address, $viewer its process.
view() {
    : >"$work/view.err"
    "$bin/caravan" view --listen 127.0.0.1:0 "$@" 2>"$work/view.err" &
    viewer=$!
    wait_for_line "$work/view.err" '^caravan: http://127\.0\.0\.1:[0-9]*/?token=[0-9a-f]*$'
    port=$(sed -n 's|^caravan: http://127\.0\.0\.1:\([0-9]*\)/.*|\1|p' "$work/view.err")
    token=$(sed -n 's/^caravan: http.*token=//p' "$work/view.err")
}

# request LINE...: sends the lines of a request; $work/answer is what comes, and the status is printed.
request() {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%s\r\n' "$@" "Connection: close" "" >&3
    cat <&3 >"$work/answer" || true
    exec 3>&-
    sed -n '1s/HTTP\/1\.1 \([0-9]*\).*/\1/p' "$work/answer"
}

# get PATH: asks as the page does; $work/body is the answer.
get() {
    [ "$(request "GET $1 HTTP/1.1" "Host: localhost:$port" "Cookie: caravan-$port=$token")" = "${2:-200}" ] ||
        fail "$1: $(head -c 1000 "$work/answer")"
    sed '1,/^\r$/d' "$work/answer" >"$work/body"
}

# number KEY: prints a number of the answer.
number() { grep -o "\"$1\": [0-9.]*" "$work/body" | head -1 | cut -d' ' -f2; }

# A run is seen while it works, and trains the same. A viewer that is killed leaves nothing behind that disturbs.
make_held 3
begin seen --set force.program="$work/held.sh" --set frames.replicas=2
seen_pid=$pid
wait_for_step seen 1
view "$work/seen" before="$work/alone"
kill -9 $viewer
wait $viewer 2>/dev/null || true
view "$work/seen" before="$work/alone"
get /
grep -q '<script src="/view.js"></script>' "$work/body" || fail "no page"
is_running() { get /api/run && grep -q '"state": "running"' "$work/body"; }
wait_until 60 is_running || fail "it runs: $(cat "$work/body")"
touch "$work/go"
while kill -0 $seen_pid 2>/dev/null; do
    for path in /api/run /api/live /api/metrics /api/map '/api/groups?where=accuracy+%3E+0' /api/quarantine /api/trace '/api/compare?a=seen&b=before'; do
        get "$path"
    done
done
wait $seen_pid || fail "seen: $(cat "$work/seen.err")"
[ "$(weights_of seen)" = "$want" ] || fail "a run that is seen trains other weights"
is_over() { get /api/live && grep -q '"state": "finished"' "$work/body"; }
wait_until 60 is_over || fail "it is over: $(cat "$work/body")"
kill $viewer
ends_with 0 $viewer "$work/view.err"

# What it says of a run that is over.
hash=$(cat "$work"/alone/store/groups.lmdb "$work"/alone/ledger.lmdb | sha256sum)
view "$work/alone" "$work/seen"
get '/api/groups?limit=0'
[ "$(number total)" = "$("$bin/caravan" groups ls "$work/alone" | wc -l)" ] || fail "groups: $(cat "$work/body")"
is_whole() { get "$1" && grep -q '"exact": true' "$work/body"; } # a slow search goes on with the next request
for where in 'accuracy = 1' 'finish = length' 'format = 1' 'completions.tokens >= 8'; do
    "$bin/caravan" groups select "$work/alone" --where "$where" 2>/dev/null | sed -n 's/^{"v":1,"id":"\([^"]*\)\/[0-9]*".*/\1/p' | sort -u >"$work/selected"
    encoded=${where// /+} encoded=${encoded//=/%3D}
    wait_until 60 is_whole "/api/groups?where=$encoded" || fail "$where: $(cat "$work/body")"
    [ "$(number matched)" = "$(wc -l <"$work/selected")" ] || fail "$where: $(number matched), but select says $(wc -l <"$work/selected")"
    diff "$work/selected" <(sed 's/.*"id": \[\([^]]*\)\].*/\1/; s/"//g; s/, /\n/g' "$work/body" | grep . | sort) || fail "$where: other groups"
done
get /api/run
grep -q '"state": "finished"' "$work/body" || fail "it is over: $(cat "$work/body")"
get /api/metrics
[ "$(sed 's/.*"reward": {"last": \[\([^]]*\)\].*/\1/; s/, /\n/g' "$work/body" | grep -c .)" = 8 ] || fail "metrics: $(head -c 500 "$work/body")"
id=$("$bin/caravan" groups ls "$work/alone" | sed -n '1s/ .*//p')
get "/api/group/$id"
grep -qF "\"id\":\"$id\"" "$work/body" || fail "a group: $(cat "$work/body")"
key=$(grep -o '"key":"[0-9a-f]*"' "$work/body" | head -1 | cut -d'"' -f4)
get "/frames/$key/0.png"
[ "$(head -c 4 "$work/body" | tail -c 3)" = PNG ] || fail "a frame is no PNG"
get /trace.json
grep -q '"ph": *"X"' "$work/body" || fail "nothing for Perfetto: $(head -c 300 "$work/body")"
get '/api/log/rollout'
grep -q caravan-rollout "$work/body" || fail "a log: $(cat "$work/body")"

# What must be refused.
host="Host: localhost:$port" cookie="Cookie: caravan-$port=$token"
refused() {
    local code=$1
    shift
    [ "$(request "$@")" = "$code" ] || fail "$code for $*: $(head -c 500 "$work/answer")"
}
refused 401 "GET / HTTP/1.1" "$host"
refused 401 "GET /api/run HTTP/1.1" "$host" "Cookie: caravan-$port=${token//[0-9]/0}"
refused 401 "GET /view.js HTTP/1.1" "$host"
refused 303 "GET /?token=$token HTTP/1.1" "$host"
grep -q "^Set-Cookie: caravan-$port=$token; HttpOnly; SameSite=Strict; Path=/" "$work/answer" || fail "no cookie: $(cat "$work/answer")"
refused 303 "GET /group/a%0d%0aX-Y:z?token=$token HTTP/1.1" "$host"
grep -q "^Location: /.$" "$work/answer" || fail "a header of the address: $(cat "$work/answer")"
refused 421 "GET / HTTP/1.1" "Host: evil.example:$port" "$cookie"
refused 421 "GET / HTTP/1.1" "$host" "Host: evil.example" "$cookie"
refused 405 "POST /api/run HTTP/1.1" "$host" "$cookie" "Content-Length: 0"
refused 405 "DELETE / HTTP/1.1" "$host" "$cookie"
refused 403 "GET /api/run HTTP/1.1" "$host" "$cookie" "Sec-Fetch-Site: cross-site"
for path in /nothing /api/group/none /api/log/../../pipeline.yaml /api/log/%2e%2e /frames/../../../etc/passwd/0.png "/frames/$key/99.png" '/api/run?of=none'; do
    get "$path" 404
done
for path in '/api/run?x=1' '/api/groups?where=nothing+=+1' '/api/groups?limit=x' '/api/compare?a=alone' '/api/metrics?points=0' '/api/groups?limit=1&limit=2'; do
    get "$path" 400
done

# The page as one file has the figures and the texts.
kill $viewer
ends_with 0 $viewer "$work/view.err"

# A store and a file of groups have all that a run has but its stages; a run that is not there yet has nothing.
"$bin/caravan" groups export "$work/alone" >"$work/groups.jsonl"
sed "s|^run: .*|run: $work/later|" "$work/p.yaml" >"$work/later.yaml"
view "$work/alone/store" "$work/groups.jsonl" later="$work/later.yaml"
for of in store groups.jsonl later; do
    for path in /api/run /api/metrics /api/map /api/groups /api/quarantine /api/trace /trace.json; do
        get "$path?of=$of"
    done
    [ $of = later ] || get "/api/group/$id?of=$of"
    get "/api/groups?limit=0&of=$of"
    [ "$(number total)" = "$([ $of = later ] && echo 0 || wc -l <"$work/groups.jsonl")" ] || fail "$of: $(cat "$work/body")"
done
get /api/live
grep -q '"state": "finished"' "$work/body" || fail "a store is not finished: $(cat "$work/body")"
get '/api/compare?a=store&b=groups.jsonl'
[ "$(number alike)" = "$(number samples)" ] && [ "$(number samples)" -gt 0 ] || fail "the same groups differ: $(cat "$work/body")"
kill $viewer
ends_with 0 $viewer "$work/view.err"

"$bin/caravan" view "$work/alone" --html "$work/page.html" --groups 3 2>"$work/err" || fail "$(cat "$work/err")"
[ "$(wc -l <"$work/err")" = 1 ] || fail "something was left out: $(cat "$work/err")"
[ "$(grep -o '"/api/group/e[0-9]-[0-9]*":' "$work/page.html" | sort -u | wc -l)" = 3 ] || fail "not three groups"
grep -q '"data:image/png;base64,' "$work/page.html" || fail "no frames"
"$bin/caravan" view "$work/alone" --html "$work/page.html" --groups 16 2>"$work/err" || fail "$(cat "$work/err")"
[ -z "$(grep -o '"[0-9a-f]\{32\}/0":' "$work/page.html" | sort | uniq -d)" ] || fail "the frames of a clip are there several times"
# A file may claim any number of frames.
sed 's/"frames":[0-9][0-9]*/"frames":1000000000000/' "$work/groups.jsonl" >"$work/claimed.jsonl"
timeout 300 "$bin/caravan" view "$work/claimed.jsonl" --html "$work/page.html" 2>"$work/err" || fail "very many frames: $(cat "$work/err")"
grep -q 'frames that this machine does not have' "$work/page.html" || fail "it is not said that the frames are missing"
[ "$(cat "$work"/alone/store/groups.lmdb "$work"/alone/ledger.lmdb | sha256sum)" = "$hash" ] || fail "a store or the ledger was changed"
expect 65 "$work/nothing: No such file" "$bin/caravan" view "$work/nothing"
expect 65 "neither a run nor a store" "$bin/caravan" view "$work/data"
expect 64 "--machine one: $work/alone/store is not a run" "$bin/caravan" view "$work/alone/store" --machine one
expect 64 "two operands have the name alone" "$bin/caravan" view "$work/alone" "$work/alone"
[ "$(weights_of alone)" = "$want" ] || fail "the weights were changed"

# A long file is read in parts: another request is answered meanwhile, and one whose client goes away is given up. Where this
# script is held up until both are answered, it asks again, a viewer that has not read the file.
awk 'BEGIN { for (k = 0; k < 40; k++) keys = keys ", \"key" k "\": 0.1234567"
    for (i = 1; i <= 50000; i++) printf "{\"step\": %d%s}\n", i, keys }' >"$work/alone/metrics.jsonl"
ask_live() { printf '%s\r\n' "GET /api/live HTTP/1.1" "Host: localhost:$port" "Cookie: caravan-$port=$token" "Connection: close" "" >&4; }
does_not_wait() {
    local waits=1
    view "$work/alone"
    exec 4<>"/dev/tcp/127.0.0.1/$port"
    ask_live
    exec 4>&-
    exec 4<>"/dev/tcp/127.0.0.1/$port"
    ask_live
    get '/api/groups?limit=0'
    read -r -t 0 -u 4 || waits=0
    cat <&4 >"$work/answer"
    exec 4>&-
    grep -q '"step": 50000,' "$work/answer" || fail "the last step: $(head -c 500 "$work/answer")"
    kill $viewer
    ends_with 0 $viewer "$work/view.err"
    return $waits
}
wait_until 120 does_not_wait || fail "another request had to wait"
