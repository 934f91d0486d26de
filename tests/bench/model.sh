#!/usr/bin/env bash
# The model's work on one group: rollout, scoring, scoring with answers that the reference writes, a training step, each precision;
# how much longer a step of refgen is than one of care; with PEER_PYTHON against PyTorch and transformers on the same weights,
# interleaved (caravan, peer, caravan), and then as a table of ratios beside their targets.
# BENCH_WORK and BENCH_PRECISION narrow it.
set -euo pipefail
build=$(dirname "$BIN") dir=$(dirname "$BIN")/bench
mkdir -p "$dir"
echo "== one group: 1,176 tokens of prompt with a 16-frame clip, 8 completions of 128 tokens"
[ -f "$dir/model/config.json" ] ||
    "$BIN/caravan" init "$dir/model" --shape tests/bench/shape.json --train-tokenizer LICENSE --seed 1
lines=$dir/model.txt
: >"$lines"

ours() { "$build/tests/bench/model_bench" "$dir/model" "$1" "$2" | sed 's/^/caravan /' | tee -a "$lines"; }
# Without this glibc gives large blocks back to the system at every free, and PyTorch's decoding takes twice its time in page faults.
peer_memory=(MALLOC_MMAP_THRESHOLD_=8000000000 MALLOC_TRIM_THRESHOLD_=16000000000 MALLOC_TOP_PAD_=268435456)
peer() { env "${peer_memory[@]}" "$PEER_PYTHON" tests/bench/peer.py "$dir/model" "$1" "$2" 2>/dev/null | sed 's/^/peer /' | tee -a "$lines"; }

for precision in ${BENCH_PRECISION:-float32 bfloat16}; do
    for work in ${BENCH_WORK:-rollout score answers train}; do
        ours "$work" "$precision"
        [ -n "${PEER_PYTHON:-}" ] && [ "$work" != answers ] || continue
        [ "$work" != rollout ] || peer rollout-released "$precision"
        peer "$work" "$precision"
        [ "$work" != train ] || peer train-shipped "$precision"
        ours "$work" "$precision"
    done
done
# A step of refgen has `answers` in the place of care's `score`. Processor seconds do not depend on what else the machine does.
awk '
    function ratio(spent, p) {
        return (spent["rollout", p] + spent["answers", p] + spent["train", p]) / (spent["rollout", p] + spent["score", p] + spent["train", p])
    }
    $1 == "caravan" && (!(($2, $3) in best) || $4 < best[$2, $3]) { best[$2, $3] = $4; worked[$2, $3] = $10 }
    END {
        for (p = "float32"; p; p = p == "float32" ? "bfloat16" : "") {
            if (!(best["rollout", p] && best["score", p] && best["answers", p] && best["train", p])) continue
            printf "a step of refgen against one of care, %s: %.3f times the time, %.3f times the processor time (asked: at most 1.3)\n",
                p, ratio(best, p), ratio(worked, p)
        }
    }' "$lines"
[ -z "${PEER_PYTHON:-}" ] || awk '
    BEGIN {
        split("rollout-released rollout score train train-shipped", works)
        split("10 4 10 8 8", asked_float32)
        split("8 4 6 5 5", asked_bfloat16)
        for (i in works) asked[works[i], "float32"] = asked_float32[i]
        for (i in works) asked[works[i], "bfloat16"] = asked_bfloat16[i]
        printf "%-17s %-9s %10s %10s %7s %6s %16s\n", "work", "precision", "caravan s", "peer s", "ratio", "asked", "memory (peer) GB"
    }
    $1 == "caravan" && (!(($2, $3) in best) || $4 < best[$2, $3]) { best[$2, $3] = $4; memory[$2, $3] = $8 }
    $1 == "peer" { order[++count] = $2 SUBSEP $3; spent[$2, $3] = $4; peer_memory[$2, $3] = $8 }
    END {
        for (i = 1; i <= count; i++) {
            split(order[i], is, SUBSEP)
            same = is[1]
            sub(/-.*/, "", same)
            printf "%-17s %-9s %10.2f %10.2f %6.1fx %5sx %7.2f (%.2f)\n", is[1], is[2], best[same, is[2]], spent[order[i]],
                spent[order[i]] / best[same, is[2]], asked[order[i]], memory[same, is[2]], peer_memory[order[i]]
        }
    }' "$lines"
