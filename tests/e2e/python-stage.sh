#!/bin/sh
# The example program in pipelines/examples handles one group per line and keeps unknown fields.
set -eu
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/in" <<'END'
{"v":1,"id":"a","sample_id":"s","prompt":{"messages":[],"problem_type":"multiple choice","solution":"<answer>C</answer>"},"mine":1.50,"completions":[{"text":"<think>so it is C</think><answer>C</answer>"},{"text":"<think>so it is B</think><answer>C</answer>"},{"text":"C"}]}

{"v":1,"id":"b","sample_id":"s","prompt":{"messages":[],"problem_type":"multiple choice","solution":"C"},"quarantine":{"stage":"frames","reason":"cut"}}
END
pipelines/examples/consistency.py --tail 10 <"$work/in" >"$work/out"
[ "$(wc -l <"$work/out")" = 2 ]
grep -q '"consistency": {"probability": \[1.0, 0.0, 0.0\]}' "$work/out"
grep -q '"mine": 1.5' "$work/out"
if sed -n 2p "$work/out" | grep -q consistency; then exit 1; fi
"$BIN/caravan-reward" --stdio --method nokl <"$work/out" >"$work/rewarded"
grep -q '"probability":\[1,0,0\]' "$work/rewarded" || grep -q '"probability":\[1.0,0.0,0.0\]' "$work/rewarded"
