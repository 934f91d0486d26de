#!/usr/bin/env bash
# tools/miniature/ablation: killed in a training, it goes on from there and makes no part again that is ready; its tables have a row
# for each method, and wrong choices are named. tools/miniature/make-start makes a model of the same form as the one that
# is there.
. "$(dirname "$0")/common.sh"

ablation() { ABLATION=check OUT="$work/all of it" BIN="$bin" tools/miniature/ablation; }

setsid env ABLATION=check OUT="$work/all of it" BIN="$bin" tools/miniature/ablation >"$work/log" 2>&1 &
killed=$!
for _ in $(seq 3000); do
    ! grep -q "care-12$" "$work/log" || break
    kill -0 $killed 2>/dev/null || fail "it ended: $(cat "$work/log")"
    sleep 0.1
done
kill -9 -- -$killed
wait $killed 2>/dev/null || true
# A run that has still to die locks its directory.
all_ended() { [ -z "$(ps -o stat= -s $killed | grep -v '^Z')" ]; }
wait_until 120 all_ended || fail "what was killed goes on: $(ps -s $killed)"
ls "$work/all of it/done" >"$work/before"
grep -qx eval-cora-11 "$work/before" || fail "killed too early: $(cat "$work/log")"
ablation >"$work/again" 2>&1 || fail "$(cat "$work/again")"
grep -o 's: .*' "$work/again" | cut -c4- | sort >"$work/parts"
if comm -12 <(sort "$work/before") "$work/parts" | grep .; then fail "made twice"; fi
for row in start sft care cora; do grep -q "^  $row " "$work/again" || fail "no row $row: $(cat "$work/again")"; done
grep -q "^| cora | 2 | " "$work/all of it/check.md" || fail "$(cat "$work/all of it/check.md")"
grep -q "</svg>" "$work/all of it/check.svg" && ! grep -q "no run has it" "$work/all of it/check.svg" || fail "no curves"
# The share of consistent completions in a training is that of its groups.
"$bin/caravan" report "$work/all of it/care-11" --by step --csv | awk -F, 'NR > 1 { printf "%.9g\n", $7 / $6 }' >"$work/rates"
diff "$work/rates" <(grep -o '"consistent": [^,]*' "$work/all of it/care-11/metrics.jsonl" | cut -d' ' -f2) || fail "other rates in metrics.jsonl"
[ -s "$work/rates" ] || fail "no rates"
expect 64 "ABLATION=much: not methods, long, knobs or check" env ABLATION=much OUT="$work/all of it" tools/miniature/ablation
expect 64 "there is no row ppo" env ONLY="care ppo" OUT="$work/all of it" BIN="$bin" tools/miniature/ablation

# Every row's settings are a training that caravan would start.
grep -oE '^( *rows=")?[a-z0-9.-]+ train( --set [^ "]+)*"?$' tools/miniature/ablation | tr -d '"' | sed 's/^ *rows=//' >"$work/rows"
[ "$(wc -l <"$work/rows")" -ge 16 ] || fail "rows: $(cat "$work/rows")"
while read -r name file settings; do
    "$bin/caravan" check pipelines/miniature/$file.yaml $settings --set source.media_root="$work/all of it/data" \
        --set source.data="$work/all of it/data/annotations/training_6k.jsonl" >"$work/log" 2>&1 || fail "$name: $(cat "$work/log")"
done <"$work/rows"

# A few steps of each training.
TRAINING="--set optim.warmup=0" OUT="$work/start" BIN="$bin" tools/miniature/make-start --training 1 --validation 1 --warm-up 4 \
    --letters 48 --rules 48 --review 48 --pretraining 24 --examples 48 >"$work/log" 2>&1 || fail "$(cat "$work/log")"
diff <(ls "$work/start/start") <(ls pipelines/miniature/start) || fail "other files"
for file in config.json tokenizer_config.json preprocessor_config.json; do
    cmp "$work/start/start/$file" "pipelines/miniature/start/$file" || fail "another $file"
done
grep -q '"BF16"' <(head -c 2000 pipelines/miniature/start/model.safetensors) || fail "the start is not in bfloat16"
