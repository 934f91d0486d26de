# caravan serve: a medium that takes long, a file whose content does not end until the test shortens it, does not delay
# others. A stream goes on, and requests that came later are answered. Clients that go away meanwhile leave room for others,
# and SIGTERM refuses what waits. No request reads a file that has no name, as the media in other requests.
. "$(dirname "$0")/common.sh"
. tests/e2e/serve-helpers.sh

make_tiny_model
echo secret >"$work/key"
slow() { truncate -s "$1" "$work/slow/${2:-clip}.mp4"; }
mkdir "$work/slow"
slow 1T
cp tests/data/media/photo.jpg "$work/slow/photo.jpg"
cp tests/data/media/photo.jpg "$work/nameless.jpg"
exec 7<"$work/nameless.jpg" # the server inherits it
rm "$work/nameless.jpg"
serve slow "$work/model" --api-key-file "$work/key" --rows 2 --queue 2 --max-new-tokens 200000 --media-root "$work/slow"
exec 7<&-
about() { say POST /v1/chat/completions "{\"model\":\"start\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"$1\"}}]}]}" "$json" "$key"; }
[[ $(readlink "/proc/$server/fd/7") == *'nameless.jpg (deleted)' ]] || fail "the server has no file without a name"
for name in /proc/self/fd/7 /proc/self/fd/../fd/7 file:///proc/self/fd/7 nothing.jpg; do
    about $name >"$work/refused"
    grep -q '^HTTP/1.1 400 ' "$work/refused" && grep -q "$name: there is no such file below the media root" "$work/refused" || fail "$name is not refused: $(cat "$work/refused")"
done
about photo.jpg | grep -q '^HTTP/1.1 200 ' || fail "a picture below the media root is refused"

begin 11 200000
head -c 300 <&11 >/dev/null
watch="{\"model\":\"start\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video_url\",\"video_url\":{\"url\":\"clip.mp4\"}}]}]}"
say POST /v1/chat/completions "$watch" "$json" "$key" >"$work/watched" & watcher=$!
is_open() { ls -l "/proc/$server/fd" 2>/dev/null | grep -q "$work/slow/${1:-clip}.mp4"; }
wait_until 60 is_open || fail "the clip is not read: $(cat "$work/watched" "$work/slow.err")"
timeout 300 head -c 100000 <&11 >"$work/meanwhile"
[ "$(grep -c '^data: ' "$work/meanwhile")" -gt 100 ] || fail "the stream does not go on: $(tail -c 300 "$work/meanwhile")"
say POST /v1/chat/completions "{$hello,\"max_tokens\":1}" "$json" "$key" | grep -q '^HTTP/1.1 200 ' || fail "a later request is not answered"
kill -0 $watcher && [ ! -s "$work/watched" ] || fail "the clip was not slow: $(cat "$work/watched")"
for fd in 12 13; do
    eval "exec $fd<>/dev/tcp/127.0.0.1/$port"
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:%s\r\n%s\r\n%s\r\nContent-Length: %d\r\n\r\n%s' "$port" "$json" "$key" ${#watch} "$watch" >&$fd
done
is_full() { say POST /v1/chat/completions "{$hello,\"max_tokens\":1}" "$json" "$key" | grep -q '^HTTP/1.1 503 '; }
wait_until 60 is_full || fail "more requests wait than --rows and --queue allow"
exec 11>&- 12>&- 13>&-
slow 0
wait $watcher
grep -q '^HTTP/1.1 400 ' "$work/watched" && grep -q 'clip.mp4: ' "$work/watched" || fail "not refused: $(cat "$work/watched")"
wait_until 60 has_room || fail "clients that went away keep their rows"
slow 1T other # the threads of those clients may still have to see that the clip is short
say POST /v1/chat/completions "${watch/clip/other}" "$json" "$key" >"$work/watched" & watcher=$!
wait_until 60 is_open other || fail "the clip is not read: $(cat "$work/watched" "$work/slow.err")"
kill $server
wait $watcher
grep -q '^HTTP/1.1 503 ' "$work/watched" && grep -q 'the server is ending' "$work/watched" || fail "not refused: $(cat "$work/watched")"
slow 0 other
wait $server || fail "the server ends with $?: $(cat "$work/slow.err")"
