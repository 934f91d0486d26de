# caravan serve: the chat-completions interface, asked by the shell over /dev/tcp and by the openai client as it is. The
# same tokens as caravan-rollout; 64 requests at a time; refusals; clients that go away; SIGTERM.
. "$(dirname "$0")/common.sh"
. tests/e2e/serve-helpers.sh

model=pipelines/miniature/start
cp -r tests/data/media "$work/media"
chat() { say POST /v1/chat/completions "$1" "$json"; } # chat BODY
# refused CODE PATTERN COMMAND...: the answer has the code, and an error in OpenAI's form with the pattern.
refused() {
    local code=$1 pattern=$2 answer
    shift 2
    answer=$("$@")
    grep -q "^HTTP/1.1 $code " <<<"$answer" || fail "not $code but: $answer"
    grep -q "^{\"error\":{\"type\":\"[a-z_]*\",\"message\":\".*$pattern" <<<"$answer" || fail "not refused with '$pattern': $answer"
}
of_content() { sed -n 's/.*"content":\("[^"]*"\)},"logprobs".*/\1/p'; }

ulimit -Sn 256
serve main $model --media-root "$work/media" --max-new-tokens 64 --rows 8 --queue 100

awk '/^Max open files/ { exit $4 != $5 }' "/proc/$server/limits" || fail "descriptors: $(cat "/proc/$server/limits")"

# A request gives the tokens that caravan-rollout gives for the same prompt and seed; the texts and log-probabilities say so.
ask='"messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"b-frames.mp4"}},{"type":"text","text":"Which colour?"}]}],"temperature":1,"top_p":0.9,"seed":5,"max_tokens":40'
chat "{\"model\":\"start\",$ask,\"n\":3,\"logprobs\":true}" >"$work/answer"
grep -q '^HTTP/1.1 200 ' "$work/answer" || fail "$(cat "$work/answer")"
"$bin/caravan" ask $model --frames min_pixels=3136 --frames max_pixels=3136 --media "$work/media/b-frames.mp4" --json --max-new-tokens 1 "Which colour?" 2>/dev/null | sed 's/,"completions":.*/}/' |
    "$bin/caravan-rollout" --stdio --model $model --group-size 3 --temperature 1 --top-p 0.9 --seed 5 --max-new-tokens 40 \
        --frames.min-pixels 3136 --frames.max-pixels 3136 >"$work/rolled"
grep -o '"content":"[^"]*"' "$work/answer" | cut -d: -f2- >"$work/answer.texts"
grep -o '"text":"[^"]*","finish"' "$work/rolled" | sed 's/"text":\(.*\),"finish"/\1/' >"$work/rolled.texts"
[ "$(sort -u "$work/rolled.texts" | wc -l)" = 3 ] || fail "rollout has not three answers: $(cat "$work/rolled")"
diff "$work/rolled.texts" "$work/answer.texts" || fail "serve and rollout differ"
grep -o '"logprobs":\[[^]]*' "$work/rolled" | head -n 1 | grep -o -- '-[0-9.e-]*' >"$work/rolled.logprobs"
grep -o '"logprob":[^,]*' "$work/answer" | cut -d: -f2 | head -n 20 >"$work/answer.logprobs"
diff <(head -n 20 "$work/rolled.logprobs") "$work/answer.logprobs" || fail "the log-probabilities differ"

# The same as a stream, whose pieces are together the text; a stop text ends it.
chat "{\"model\":\"start\",$ask,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" >"$work/stream"
grep -q '^data: \[DONE\]' "$work/stream" && grep -q '"usage":{"prompt_tokens":[0-9]' "$work/stream" || fail "$(cat "$work/stream")"
[ "$(grep -c '"delta":{"content"' "$work/stream")" -gt 5 ] || fail "not in pieces: $(cat "$work/stream")"
streamed=$(sed -n 's/.*"delta":{"content":"\([^"]*\)"}.*/\1/p' "$work/stream" | tr -d '\n')
[ "\"$streamed\"" = "$(head -n 1 "$work/rolled.texts")" ] || fail "the stream has another text: $streamed"
whole=$(head -n 1 "$work/rolled.texts") part=${streamed:9:6}
chat "{\"model\":\"start\",$ask,\"stop\":[\"no such text\",\"$part\"]}" >"$work/stopped"
[ "$(of_content <"$work/stopped")" = "${whole%%"$part"*}\"" ] && grep -q '"finish_reason":"stop"' "$work/stopped" || fail "not stopped before '$part' of $whole: $(cat "$work/stopped")"

# A picture in the request is the picture in the file.
picture="data:image/png;base64,$(base64 -w 0 "$work/media/alpha.png")"
about() { chat "{\"model\":\"start\",\"temperature\":0,\"max_tokens\":12,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"$1\"}},{\"type\":\"text\",\"text\":\"Which?\"}]}]}"; }
[ -n "$(about "$picture" | of_content)" ] && [ "$(about "$picture" | of_content)" = "$(about "file://$work/media/alpha.png" | of_content)" ] || fail "data: $(about "$picture") file: $(about "file://$work/media/alpha.png")"

# What is refused, and why.
say GET /v1/models "" | grep -q '"object":"list","data":\[{"object":"model","id":"start"' || fail "no list of models"
refused 404 'no such model' say GET /v1/models/other ""
refused 404 'there is no /v1/completions here' say POST /v1/completions "{}" "$json"
refused 405 'GET is not allowed' say GET /v1/chat/completions ""
refused 415 'application/json' say POST /v1/chat/completions "{$hello}" "Content-Type: text/plain"
refused 400 'not JSON' chat '{"model":'
refused 413 'more than 1048576 values' chat "{$hello,\"metadata\":[$(head -c 1048576 /dev/zero | sed 's/\x0/0,/g')0]}"
refused 404 'no model .gpt. here' chat '{"model":"gpt","messages":[{"role":"user","content":"Hello"}]}'
refused 400 'messages: must be a list' chat '{"model":"start"}'
refused 400 'role must be' chat '{"model":"start","messages":[{"role":"tool","content":"Hello"}]}'
refused 400 'presence_penalty: this server cannot' chat "{$hello,\"presence_penalty\":0.5}"
refused 400 "stream_options: 'include_obfuscation' is not supported" chat "{$hello,\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}}"
refused 400 'stream_options: belongs to a stream' chat "{$hello,\"stream_options\":{\"include_usage\":true}}"
refused 400 'max_tokens: must be an integer from 1 to 64' chat "{$hello,\"max_tokens\":65}"
refused 400 'temperature: must be a number' chat "{$hello,\"temperature\":-1}"
refused 400 'n: must be an integer from 1 to 8' chat "{$hello,\"n\":9}"
refused 400 'content\[0\]: must be an object' chat '{"model":"start","messages":[{"role":"user","content":[{"type":"image_url"}]}]}'
refused 400 'nothing is fetched' about "https://127.0.0.1/x.png"
refused 400 'this is not base64' about "data:image/png;base64,a"
refused 400 'cannot be opened' about "data:image/png;base64,AAAA"
refused 400 'no such file below the media root' about "file://$PWD/tests/data/media/alpha.png"
refused 400 'no such file below the media root' about "../answer"
# Messages without a text, so many that copies of their list would not fit into memory.
many=$(printf '{"role":"user","content":""},%.0s' $(seq 10000))
refused 400 'prompt too long' chat "{\"model\":\"start\",\"messages\":[${many%,}]}"
peak=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status")
[ "$peak" -lt 1500000 ] || fail "10000 messages take $peak kB"
refused 400 'contains <|image_pad|>' chat '{"model":"start","messages":[{"role":"user","content":"<|image_pad|>"}]}'
chat "{$hello,\"presence_penalty\":0,\"user\":\"me\",\"metadata\":{\"a\":\"b\"},\"tools\":null,\"max_tokens\":2}" | grep -q '^HTTP/1.1 200 ' || fail "parameters that do nothing are refused"

# 64 requests at a time, half of whose clients go away while theirs runs: the others get what they get alone.
one() { chat "{$hello,\"temperature\":1,\"seed\":$1,\"max_tokens\":64,\"ignored\":null}" | of_content >"$work/many-$2-$1"; }
leave() { # asks for a stream, and goes away when it has begun
    exec 6<>"/dev/tcp/127.0.0.1/$port"
    local body="{$hello,\"stream\":true,\"n\":2}"
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:%s\r\n%s\r\nContent-Length: %d\r\n\r\n%s' "$port" "$json" ${#body} "$body" >&6
    [ "$1" = 1 ] || head -c 400 <&6 >/dev/null
    exec 6>&-
}
clients=()
for i in $(seq 32); do
    one "$i" together & clients+=($!)
    leave $((i % 2)) & clients+=($!)
done
wait "${clients[@]}" || fail "a client failed"
for i in 1 16 32; do one "$i" alone; done
for i in $(seq 32); do [ -s "$work/many-together-$i" ] || fail "request $i was lost"; done
for i in 1 16 32; do cmp "$work/many-together-$i" "$work/many-alone-$i" || fail "request $i has another answer in company"; done

# The openai client as it is.
if timeout 120 python3 -m pip install --quiet --no-compile --target "$work/python" openai 2>"$work/pip.err"; then
    PYTHONPATH=$work/python python3 - "$port" "$picture" "$whole" <<'END' || fail "the openai client"
import sys, json, openai
port, picture, whole = sys.argv[1:]
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
assert [model.id for model in client.models.list()] == ["start"]
about = [{"type": "video_url", "video_url": {"url": "b-frames.mp4"}}, {"type": "text", "text": "Which colour?"}]
given = dict(model="start", messages=[{"role": "user", "content": about}], temperature=1, top_p=0.9, seed=5, max_tokens=40)
answer = client.chat.completions.create(**given, n=2, logprobs=True)
first = answer.choices[0]
assert first.message.content == json.loads(whole), (first, whole)
assert "".join(token.token for token in first.logprobs.content) == first.message.content
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
pieces = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == json.loads(whole)
assert pieces[-1].usage.completion_tokens > 5
turns = [{"role": "developer", "content": "Be brief."},
         {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "Which?"}]},
         answer.choices[0].message, {"role": "user", "content": "And now?"}]
assert client.chat.completions.create(model="start", messages=turns, max_completion_tokens=3).usage.completion_tokens <= 3
def refused(kind, code, **more):
    try:
        client.chat.completions.create(**{**given, **more})
    except kind as error:
        assert error.code == code and error.body["message"], error
    else:
        raise SystemExit(f"not refused: {more}")
refused(openai.NotFoundError, "model_not_found", model="other")
refused(openai.BadRequestError, "unsupported_parameter", logit_bias={"5": 1})
refused(openai.BadRequestError, "invalid_value", top_p=2)
END
else
    echo "not tried: the openai client cannot be installed: $(tail -n 1 "$work/pip.err")"
fi

kill $server && wait $server || fail "the server ends with $?: $(cat "$work/main.err")"
[ "$(wc -l <"$work/main.err")" = 1 ] || fail "it said: $(cat "$work/main.err")"

# With a key. One answer is decoded at a time, one more prompt is computed, a third request waits, and others are refused.
echo secret >"$work/key"
make_tiny_model
mkdir "$work/slow"
truncate -s 1T "$work/slow/clip.mp4" # it is read until it is made shorter
serve key "$work/model" --api-key-file "$work/key" --rows 1 --queue 2 --max-new-tokens 200000 --media-root "$work/slow"
grep -q 'was never trained' "$work/key.err" || fail "a random model is taken for a trained one"
refused 401 'no key' say GET /v1/models ""
refused 401 'a wrong one' say GET /v1/models "" "${key}s"
say GET /v1/models "" "$key" | grep -q '^HTTP/1.1 200 ' || fail "the key is refused"
exec 10<>"/dev/tcp/127.0.0.1/$port" # a body that does not come
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:%s\r\n%s\r\nContent-Length: 30000000\r\n\r\n' "$port" "$json" >&10
timeout 60 head -n 1 <&10 | grep -q '^HTTP/1.1 401 ' || fail "a request without the key is read"
exec 10>&-
# A request of 30 MB takes no memory while its answer is decoded, whose own memory grows with its tokens: these are few.
resident() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status"; }
begin 11 6000
head -c 300 <&11 >/dev/null
before=$(resident)
exec 11>&-
wait_until 60 has_room || fail "a client that went away keeps its row"
begin 11 6000 ",\"metadata\":{\"a\":\"$(head -c 30000000 /dev/zero | tr '\0' x)\"}"
head -c 300 <&11 >/dev/null
if ! grep -q '__[at]san_init' "$bin/caravan"; then # a sanitizer keeps what was freed
    [ "$(resident)" -lt $((before + 20000)) ] || fail "from $before to $(resident) kB with a large request under way"
fi
exec 11>&-
wait_until 60 has_room || fail "a client that went away keeps its row"
for fd in 11 12 13 14; do begin $fd 200000; done
say POST /v1/chat/completions "{$hello}" "$json" "$key" >"$work/overload"
grep -q '^HTTP/1.1 503 ' "$work/overload" && grep -q '^Retry-After: 1' "$work/overload" && grep -q '"code":"overloaded"' "$work/overload" || fail "not refused: $(cat "$work/overload")"
exec 11>&- 12>&- 13>&- 14>&- # the clients go away, and there is room again
wait_until 60 has_room || fail "clients that went away keep their rows"

# SIGTERM: what is under way is finished, and what waits is refused.
begin 11 6000
head -c 200 <&11 >"$work/under-way"
begin 12 10
watch='{"model":"start","messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"clip.mp4"}}]}]}' # it waits until then, however late that is
exec 13<>"/dev/tcp/127.0.0.1/$port"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:%s\r\n%s\r\n%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' "$port" "$json" "$key" ${#watch} "$watch" >&13
late='{"model":"start"}' # its end comes when the last answer has ended
exec 14<>"/dev/tcp/127.0.0.1/$port"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:%s\r\n%s\r\n%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' "$port" "$json" "$key" ${#late} "${late%\}}" >&14
say GET /v1/models "" "$key" >/dev/null
kill $server
cat <&13 >"$work/waiting"
truncate -s 0 "$work/slow/clip.mp4"
cat <&11 >>"$work/under-way"
cat <&12 >"$work/computed"
sleep 0.5
printf '}' >&14 || fail "the server did not wait for a request"
cat <&14 >"$work/late"
grep -q '^HTTP/1.1 503 ' "$work/late" && grep -q 'the server is ending' "$work/late" || fail "not refused: $(cat "$work/late")"
wait $server || fail "the server ends with $?: $(cat "$work/key.err")"
grep -q 'finish_reason":"length"' "$work/under-way" && grep -q '^data: \[DONE\]' "$work/under-way" || fail "not finished: $(tail -c 1000 "$work/under-way")"
if grep -q '^HTTP/1.1 200 ' "$work/computed"; then # it may have been taken, and is finished then
    grep -q '^data: \[DONE\]' "$work/computed" || fail "not finished: $(cat "$work/computed")"
else
    grep -q '^HTTP/1.1 503 ' "$work/computed" && grep -q 'the server is ending' "$work/computed" || fail "not refused: $(cat "$work/computed")"
fi
grep -q '^HTTP/1.1 503 ' "$work/waiting" && grep -q 'the server is ending' "$work/waiting" || fail "not refused: $(cat "$work/waiting")"
expect 64 'say with --host' "$bin/caravan" serve "$work/nowhere" --listen 0.0.0.0:0
expect 64 'rows' "$bin/caravan" serve "$work/nowhere" --rows 257
expect 65 'serve: .*/nowhere: No such file or directory' "$bin/caravan" serve "$work/nowhere" --listen 127.0.0.1:0
expect 65 'serve: .*/nowhere: No such file or directory' "$bin/caravan" serve "$work/nowhere" --listen 127.0.0.1:0 --name "$(printf '%255s' x)"
for name in "" "$(printf '%256s' x)"; do expect 64 'serve: --name: must have from 1 to 255 bytes' "$bin/caravan" serve $model --listen 127.0.0.1:0 --name "$name"; done
expect 64 'no address with a port' "$bin/caravan" serve "$work/nowhere" --listen 127.0.0.1
expect 65 'no key' "$bin/caravan" serve $model --listen 127.0.0.1:0 --api-key-file /dev/null
