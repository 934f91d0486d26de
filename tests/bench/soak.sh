#!/usr/bin/env bash
# The processes of a long run: SOAK_GROUPS (50,000) groups of two short completions of a tiny model go through a pipeline with
# a program and all training, so that time goes into messages, stores, weights and bookkeeping. Prints memory, descriptors
# and processor time of every process at ten points, and the run's files. Fails when one of them grows.
set -euo pipefail
bin=$PWD/${BUILD:-build}/bin groups=${SOAK_GROUPS:-50000} per_step=20
steps=$((groups / per_step)) run=
work=$(mktemp -d)
trap 'kill $run 2>/dev/null || true; wait; rm -rf "$work"' EXIT
[ "$steps" -ge 50 ] || { echo "soak: SOAK_GROUPS must be 1,000 or more" >&2; exit 64; }
cd "$work"

echo "What is it? It is a red square, and then it is a blue circle." >text.txt
cat >shape.json <<'END'
{"model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
 "vocab_size": 320, "tie_word_embeddings": true, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
 "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [0]}}
END
"$bin/caravan" init model --shape shape.json --train-tokenizer text.txt --seed 3
seq 1000 | sed 's/.*/{"id": "s&", "prompt": {"messages": [{"role": "user", "content": "What is &?"}], "problem_type": "numerical", "solution": "<answer>1<\/answer>"}}/' >data.jsonl
printf '#!/bin/sh\nexec cat\n' >pass.sh
chmod +x pass.sh
cat >p.yaml <<END
run: run
model: model
precision: float32
threads: 1
seed: 7
stages:
  - source: {data: data.jsonl, template: none, group_size: 2, groups_per_step: $per_step, epochs: $((groups / 1000 + 1)), max_steps: $steps, max_staleness: 1}
  - rollout: {max_new_tokens: 2}
  - refscore: {}
  - reward: {method: care}
  - pass: {program: ./pass.sh}
  - optim: {lr: 1.0e-6, ema_every: 10, save_every: $((steps / 20)), keep: 2}
END

# processes PID: the process and everything below it.
processes() {
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do processes "$child"; done
}

# Appends a line for each process: point, name, resident memory that belongs to no file in KB, descriptors, processor time in
# ticks; then one for the run: its files, their bytes, and the mean seconds of the latest steps.
take_point() {
    local pid name
    for pid in $(processes "$run" | sort -n); do
        name=$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | awk '{ sub(".*/", "", $1); sub(".*/", "", $2); print $1 (($1 ~ /^caravan$|^sh$/) ? "." $2 : "") }') || true
        [ -z "$name" ] || awk -v point="$1" -v name="$name" -v files="$(find "/proc/$pid/fd" -type l 2>/dev/null | wc -l)" -v pid="$pid" '
            FILENAME ~ /status/ && $1 == "RssAnon:" { memory = $2 }
            FILENAME ~ /stat$/ { sub(".*\\) ", ""); ticks = $12 + $13 }
            END { print point, name, pid, memory, files, ticks }' "/proc/$pid/status" "/proc/$pid/stat" >>points 2>/dev/null || true # it may end meanwhile
    done
    echo "$1 run 0 $(du -sk run | cut -f1) $(find run -type f | wc -l) $(tail -n $((steps / 10)) run/metrics.jsonl | awk '{ match($0, /"seconds": [0-9.e-]+/); sum += substr($0, RSTART + 11, RLENGTH - 11) } END { print 1000 * sum / NR }')" >>points
}

"$bin/caravan" run p.yaml 2>log &
run=$!
for point in $(seq 10); do
    while [ "$(cat run/metrics.jsonl 2>/dev/null | wc -l)" -lt $((steps * point * 49 / 500)) ]; do
        kill -0 $run 2>/dev/null || { echo "soak: the run ended early: $(tail -5 log)" >&2; exit 1; }
        sleep 0.1
    done
    take_point "$point"
done
wait $run || { cat log >&2; exit 1; }
run=
grep "done:" log

# A tenth of the run is between two points. The first three are the beginning; the middle is compared with the end.
awk -v groups="$groups" -v hertz="$(getconf CLK_TCK)" '
    { key = $2 " " $3; if (!(key in row)) { row[key] = ++rows; name[rows] = $2 }
      r = row[key]; memory[r, $1] = $4; files[r, $1] = $5; ticks[r, $1] = $6; seen[r]++ }
    function mean(table, r, from, to,   i, sum) { for (i = from; i <= to; i++) sum += table[r, i]; return sum / (to - from + 1) }
    function line(title, table, r, form,   i) { printf "%-22s %-9s", name[r], title; for (i = 1; i <= 10; i++) printf form, table[r, i]; print "" }
    function bad(r, what) { printf "NOT FLAT: %s: %s\n", name[r], what; failed = 1 }
    END {
        for (r = 1; r <= rows; r++) {
            if (seen[r] < 10) { bad(r, "did not live all the time"); continue }
            if (name[r] == "run") {
                line("files", files, r, " %7d"); line("disk KB", memory, r, " %7d"); line("ms a step", ticks, r, " %7.2f")
                if (mean(files, r, 8, 10) > mean(files, r, 3, 5) + 5) bad(r, "files grow")
                if (mean(ticks, r, 8, 10) > 2 * mean(ticks, r, 3, 5)) bad(r, "steps get slower")
                continue
            }
            for (i = 10; i >= 2; i--) cost[r, i] = 1000 * (ticks[r, i] - ticks[r, i - 1]) / hertz / (groups / 10)
            cost[r, 1] = 1000 * ticks[r, 1] / hertz / (groups / 10)
            line("memory KB", memory, r, " %7d"); line("open", files, r, " %7d"); line("ms/group", cost, r, " %7.3f")
            if (mean(memory, r, 8, 10) > mean(memory, r, 3, 5) + 2560) bad(r, "memory grows")
            if (mean(files, r, 8, 10) > mean(files, r, 3, 5) + 2) bad(r, "open files grow")
            if (mean(cost, r, 8, 10) > 1.5 * mean(cost, r, 3, 5) + 0.1) bad(r, "processor time grows")
        }
        exit failed
    }' points
