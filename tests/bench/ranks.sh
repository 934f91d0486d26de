#!/usr/bin/env bash
# Ranks on one machine: a step of two groups by one process with two threads and by two processes with one each, in turn, and
# the bytes that a rank sends, beside those of a ring. BENCH_ROUNDS (3) rounds; the best of each counts.
set -euo pipefail
build=$(dirname "$BIN") dir=$(dirname "$BIN")/bench
mkdir -p "$dir"
echo "== ranks: a training step of two groups, float32, two threads in all"
[ -f "$dir/model/config.json" ] ||
    "$BIN/caravan" init "$dir/model" --shape tests/bench/shape.json --train-tokenizer LICENSE --seed 1
lines=$dir/ranks.txt
: >"$lines"
for ((round = 0; round < ${BENCH_ROUNDS:-3}; round++)); do
    "$build/tests/bench/model_bench" "$dir/model" train float32 2 cpu 1 2 | sed 's/^/one process, two threads: /' | tee -a "$lines"
    "$build/tests/bench/model_bench" "$dir/model" train float32 1 cpu 2 2 | sed 's/^/two ranks of one thread: /' | tee -a "$lines"
done
awk '
    { match($0, /[0-9.]+ s /); seconds = substr($0, RSTART) + 0; ranks = $1 == "two" ? 2 : 1 }
    !(ranks in best) || seconds < best[ranks] { best[ranks] = seconds }
    END { printf "two ranks of one thread against one process with two: %.3f times the time (asked: at most 1.1)\n", best[2] / best[1] }' "$lines"
