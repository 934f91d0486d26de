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

# The example of a reward has the totals and advantages of caravan-reward.
cat >"$work/in" <<'END'
{"v":1,"id":"a","sample_id":"s","prompt":{"messages":[],"problem_type":"multiple choice","solution":"<answer>C</answer>"},"completions":[{"text":"<think>so it is C</think><answer>C</answer>"},{"text":"<think>so it is B</think><answer>B</answer>"},{"text":"none"}]}
END
pipelines/examples/my_reward.py <"$work/in" >"$work/out"
"$BIN/caravan-reward" --stdio --method nokl <"$work/in" >"$work/rewarded"
python3 - "$work/out" "$work/rewarded" <<'END'
import json, sys
mine, theirs = (json.load(open(name)) for name in sys.argv[1:])
pairs = list(zip(mine["rewards"]["total"] + mine["advantages"], theirs["rewards"]["total"] + theirs["advantages"]))
assert len(pairs) == 6 and all(abs(a - b) <= 1e-5 for a, b in pairs), pairs
END
