# The example program that asks a chat-completion server, with a server of this script that is busy, broken, slow, silent, or
# refuses. What it asks, how often it asks again, and what it makes of each reply.
. tests/e2e/common.sh
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
cat >"$work/server.py" <<'END'
import http.server, json, re, sys
asked = {}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"]
        case, number = re.search(r"thinking=([a-z]+)(\d*)", text).groups()
        asked[case + number] = count = asked.get(case + number, 0) + 1
        status, reply = 200, "It does.\nVerdict: " + ("no" if number >= "3" else "yes")
        if case == "busy" and count < 3: status = 429
        if case == "broken" and count == 1: return self.send(200, b"<html>")
        if case == "empty" and count == 1: return self.send(200, b'{"choices": []}')
        if case == "cut" and count == 1: return self.close_connection  # nothing is sent
        if case == "failing" and count == 1: status = 500
        if case == "slow" or case == "late" and count == 1: return self.connection.recv(1)  # until the client gives up
        if case == "down": status = 500
        if case == "refused": status = 400
        if case == "silent": reply = None
        if case == "unclear": reply = "Perhaps \ud800."
        if case == "no": reply = 'At first "Verdict: yes", but:\n**Verdict:** No.'
        if case == "seen": reply = text + self.path + self.headers["Authorization"] + body["model"] + " verdict no"
        self.send(status, json.dumps({"choices": [{"message": {"content": reply}}]}).encode())
    def send(self, status, data):
        self.send_response(status)
        if status == 429: self.send_header("Retry-After", "0.01")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *arguments): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
END
python3 "$work/server.py" >"$work/port" 2>"$work/server.err" &
server=$!
trap 'kill $server; rm -rf "$work"' EXIT
wait_until 120 test -s "$work/port" || fail "no server: $(cat "$work/server.err")"
port=$(cat "$work/port")
# A text that looks like a field stays as it is.
printf 'question={question} thinking={thinking} answer={answer} {other}' >"$work/prompt.txt"

# group TEXT...: a group with these completions.
group() {
    printf '{"id":"g","sample_id":"s","prompt":{"messages":[{"role":"user","content":[{"type":"video","video":"x"},{"type":"text","text":"{answer}é?"}]}],"problem_type":"multiple choice","solution":"A"},"mine":1,"consistency":{"probability":[0.5]},"completions":['
    comma=
    for text; do printf '%s{"text":"%s"}' "$comma" "$text" && comma=,; done
    echo ']}'
}
cases="busy broken empty cut down refused silent unclear no seen"
set --
for case in $cases; do set -- "$@" "<think>$case</think><answer> B </answer>"; done
{
    group "$@" "<answer>B</answer>" "<think>x</think>B"
    echo '{"id":"q","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames","reason":"cut"}}'
} >"$work/in"
ask() {
    MY_KEY=secret pipelines/examples/chat_judge.py --address "http://127.0.0.1:$port/v1/" --model tester --prompt "$work/prompt.txt" --key MY_KEY \
        --timeout 60 --retries 2 --pause 0.01 "$@"
}
ask <"$work/in" >"$work/out" 2>"$work/err" || fail "$(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 2 ] || fail "not a line for each group: $(cat "$work/out")"
if sed -n 2p "$work/out" | grep -q consistency; then fail "a quarantined group was judged"; fi
"$bin/caravan-score" --stdio <"$work/out" >"$work/scored" || fail "not groups: $(cat "$work/out")"
python3 - "$work/out" $cases <<'END' || fail "$(cat "$work/out" "$work/err")"
import json, sys
group = json.loads(open(sys.argv[1], encoding="utf-8").readline())
found = group["consistency"]
assert found["judge"] == "tester" and found["probability"] == [0.5] and group["mine"] == 1
got = dict(zip(sys.argv[2:] + ["untagged", "unanswered"], zip(found["verdict"], found["reason"])))
assert len(got) == len(found["verdict"]) == len(found["reason"]) == 12
yes = (1, "It does.\nVerdict: yes")
for case in "busy", "broken", "empty", "cut": assert got[case] == yes, case
assert got["no"] == (0, 'At first "Verdict: yes", but:\n**Verdict:** No.')
assert got["seen"][1] == "question={answer}é? thinking=seen answer=B {other}/v1/chat/completionsBearer secrettester verdict no"
assert got["unclear"] == (None, "no verdict in the reply: Perhaps ?.")
for case, reason in ("down", "HTTP 500"), ("refused", "HTTP 400"), ("silent", "not a chat completion"):
    assert got[case][0] is None and got[case][1].startswith("no reply: ") and reason in got[case][1], case
for case in "untagged", "unanswered": assert got[case] == (None, "there is no thinking or no answer")
END
[ "$(grep -c 'HTTP 500' "$work/err")" = 3 ] || fail "not three requests that fail: $(cat "$work/err")"
[ "$(grep -c 'HTTP 400' "$work/err")" = 1 ] || fail "a request that was refused was sent again: $(cat "$work/err")"
# A server that never answers, which alone is not waited for: another one may take a while beside much other work.
group "<think>slow</think><answer>B</answer>" | ask --timeout 0.5 >"$work/out" 2>"$work/err" || fail "slow: $(cat "$work/err")"
grep -q '"verdict": \[null\], "reason": \["no reply: [^"]*timed out"\]' "$work/out" || fail "slow: $(cat "$work/out" "$work/err")"
[ "$(grep -c 'timed out' "$work/err")" = 3 ] || fail "not three requests that time out: $(cat "$work/err")"

# With the wording beside the program, at most four requests a second: the first of three does not wait.
group "<think>no</think><answer>B</answer>" "<think>no</think><answer>B</answer>" "<think>no</think><answer>B</answer>" >"$work/in"
sed 's/{thinking}/thinking={thinking}/' pipelines/examples/chat_judge.txt >"$work/shipped.txt"
started=$(date +%s%N)
ask --prompt "$work/shipped.txt" --rate 240 <"$work/in" | grep -q '"verdict": \[0, 0, 0\]' || fail "the wording that is shipped"
[ $(($(date +%s%N) - started)) -ge 500000000 ] || fail "faster than the rate"

expect 2 "MY_NONE is not set" pipelines/examples/chat_judge.py --address http://x --model m --key MY_NONE
expect 2 "not http" pipelines/examples/chat_judge.py --address localhost:8000 --model m
expect 2 "No such file" pipelines/examples/chat_judge.py --address http://x --model m --prompt /nowhere

# The pipeline that collects labels for a consistency model, whose server fails once for each completion: no verdict is lost. A
# program stands for the sampler, because a model with random weights neither thinks nor answers.
cat >"$work/sampler.py" <<'EOF'
#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    group = json.loads(line)
    first = 0 if "first" in group["prompt"]["question"] else 3
    thoughts = ["broken0", "failing1", "cut2", "late3", "broken4", "failing5"][first:first + 3]
    group["completions"] = [{"text": f"<think>thinking={thought}</think><answer>{answer}</answer>", "finish": "eos"}
                            for thought, answer in zip(thoughts, "ABA")]
    print(json.dumps(group), flush=True)
EOF
chmod +x "$work/sampler.py"
for number in first second; do
    printf '{"problem_id": "%s", "problem": "Which is the %s?", "data_type": "image", "problem_type": "multiple choice", "options": ["A. red", "B. blue"], "path": "%s", "solution": "<answer>A</answer>"}\n' \
        $number $number "$PWD/tests/data/media/alpha.png"
done >"$work/questions.jsonl"
"$bin/caravan" init "$work/model" --shape pipelines/miniature/shape.json --train-tokenizer README.md --seed 3
set --
for option in run="$work/run" model="$work/model" source.data="$work/questions.jsonl" source.media_root=/ source.groups_per_step=2 source.group_size=3 \
    rollout.program="$work/sampler.py" judge.replicas=2 judge.address="http://127.0.0.1:$port/v1" judge.request_timeout=15 judge.pause=0.01; do
    set -- "$@" --set "$option"
done
"$bin/caravan" run pipelines/cora-judge.yaml "$@" >"$work/talk" 2>&1 || fail "the pipeline: $(cat "$work/talk" "$work"/run/logs/*.log)"
for reason in 'HTTP 500' 'timed out' 'not a chat completion' 'closed connection'; do
    grep -q "$reason" "$work"/run/logs/judge*.log || fail "no failure '$reason': $(cat "$work"/run/logs/judge*.log)"
done
"$bin/caravan" groups export --store "$work/run/store" >"$work/judged"
[ "$(grep -c '"total":\[2,1,2\].*"trained":{"step":1}' "$work/judged")" = 2 ] || fail "rewards: $(cat "$work/judged")"
"$bin/caravan" pairs "$work/run" | sed 's/.*thinking=[a-z]*\(.\)".*"label":\(.\),.*"step":1}$/\1 \2/' | sort | tr '\n' ' ' >"$work/labels"
[ "$(cat "$work/labels")" = "0 1 1 1 2 1 3 0 4 0 5 0 " ] || fail "labels: $(cat "$work/labels" "$work/judged")"
"$bin/caravan" report --by step "$work/run" >"$work/report"
grep -q '^  1  *6  *50\.0 %  *2  *1  *2  *1$' "$work/report" || fail "figures: $(cat "$work/report")"
