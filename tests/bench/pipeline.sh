#!/usr/bin/env bash
# Each stage alone on saved groups, then the same groups through the whole pipeline: each stage's figures, and what the pipeline adds to the sum of its
# stages' work, on the same machine one after the other. At max_staleness 0, so that a step's groups wait for the weights before them.
# BENCH_STEPS (2), BENCH_TOKENS (128), BENCH_PRECISIONS narrow or widen it.
set -euo pipefail
build=$(dirname "$BIN") dir=$(dirname "$BIN")/bench
here=$(cd "$dir" && pwd) steps=${BENCH_STEPS:-2} tokens=${BENCH_TOKENS:-128} per_step=4
groups=$((per_step * steps))
TIMEFORMAT='%R %U %S'
[ -f "$dir/clip.mp4" ] || "$build/tests/bench/media" draw "$dir/clip.mp4"
[ -f "$dir/model/config.json" ] ||
    "$BIN/caravan" init "$dir/model" --shape tests/bench/shape.json --train-tokenizer LICENSE --seed 1
for i in $(seq "$groups"); do
    echo '{"problem_id":"'"$i"'","problem":"What is seen at place '"$i"'?","options":["A. a square","B. a circle"],"problem_type":"multiple choice","data_type":"video","path":"clip.mp4","solution":"<answer>A</answer>"}'
done >"$dir/questions.jsonl"

# A random model is never right, so that every reward is equal and every gradient 0. A program in the place of the reward stage gives other advantages.
cat >"$dir/advantages" <<'END'
#!/bin/sh
exec sed -u 's/}$/,"advantages":[1,-1,1,-1,1,-1,1,-1]}/'
END
chmod +x "$dir/advantages"

# The lines of a file, a step's groups at a time: the next ones when as many have come back through the pipe `back`.
paced() {
    exec 3<"$dir/back"
    local line left=$per_step
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [ $((left -= 1)) -gt 0 ] && continue
        for left in $(seq "$per_step"); do read -r _ <&3; done
        left=$per_step
    done <"$1"
    exec >/dev/null
    cat <&3
}

# stage NAME INPUT OUTPUT OPTION...: times a stage alone, which gets a step's groups when it has done the last one's, as in the pipeline.
stage() {
    local name=$1 input=$2 output=$3
    shift 3
    rm -f "$dir/back"
    mkfifo "$dir/back"
    paced "$input" |
        { time "$BIN/caravan-$name" --stdio "$@" 2>"$dir/$name.log"; } 2>"$dir/time.txt" | tee "$dir/$output" >"$dir/back"
    awk -v name="$name" -v groups="$groups" -v tokens=$((groups * 8 * tokens)) '{
        printf "  %-10s %7.2f s alone, %6.2f processor-s, %6.2f groups/s, %7.0f tokens/s\n", name, $1, $2 + $3, groups / $1, tokens / $1 }' "$dir/time.txt"
    awk '{ print $1, $2 + $3 }' "$dir/time.txt" >>"$dir/alone.txt"
}

for precision in ${BENCH_PRECISIONS:-float32 bfloat16}; do
    echo "== stages alone and the pipeline, $precision: $groups groups of 8 completions of $tokens tokens, $steps steps"
    rm -rf "$dir/store" "$dir/alone" "$dir/run" "$dir/alone.txt"
    model=(--model "$dir/model" --store "$dir/store" --precision "$precision")
    stage source /dev/null 1.jsonl --data "$dir/questions.jsonl" --format video-r1 --media-root "$dir" --groups-per-step $per_step
    stage frames "$dir/1.jsonl" 2.jsonl --store "$dir/store" --media-root "$dir"
    stage rollout "$dir/2.jsonl" 3.jsonl "${model[@]}" --max-new-tokens "$tokens"
    stage refscore "$dir/3.jsonl" 4.jsonl "${model[@]}"
    "$dir/advantages" <"$dir/4.jsonl" >"$dir/5.jsonl"
    stage optim "$dir/5.jsonl" 6.jsonl "${model[@]}" --groups-per-step $per_step --steps "$steps" --out "$dir/alone"
    cat >"$dir/pipeline.yaml" <<END
run: $here/run
model: $here/model
stages:
  - source: {data: $here/questions.jsonl, format: video-r1, media_root: $here, groups_per_step: $per_step}
  - frames: {media_root: $here}
  - rollout: {max_new_tokens: $tokens, precision: $precision}
  - refscore: {precision: $precision}
  - advantages: {program: ./advantages}
  - optim: {precision: $precision, groups_per_step: $per_step}
END
    { time "$BIN/caravan" run "$dir/pipeline.yaml" >"$dir/run.log" 2>&1; } 2>"$dir/time.txt"
    [ "$(wc -l <"$dir/run/metrics.jsonl")" = "$steps" ] || { cat "$dir/run.log"; exit 1; }
    awk '
        FNR == NR { alone += $1; worked += $2; next }
        { printf "  pipeline   %7.2f s, %6.2f processor-s; its stages alone, one after the other: %.2f s, %.2f processor-s: overhead %.1f %% of time, %.1f %% of work (asked: under 3 %%)\n",
            $1, $2 + $3, alone, worked, 100 * ($1 / alone - 1), 100 * (($2 + $3) / worked - 1) }' "$dir/alone.txt" "$dir/time.txt"
done
