#!/usr/bin/env bash
# A consistency model of ModernBERT-large's shape that scores 8 completions: time, memory, share of the processor's peak; with
# PEER_PYTHON against PyTorch and transformers on the same weights, interleaved (caravan, peer, caravan).
set -euo pipefail
build=$(dirname "$BIN") dir=$(dirname "$BIN")/bench
mkdir -p "$dir"
echo "== a classifier: ModernBERT-large, 8 texts of 700 tokens"
[ -f "$dir/modernbert/config.json" ] || "$BIN/caravan" init "$dir/modernbert" --shape modernbert-large --train-tokenizer LICENSE --seed 1
lines=$dir/classifier.txt
: >"$lines"

ours() { "$build/tests/bench/classifier_bench" "$dir/modernbert" "$1" | sed 's/^/caravan /' | tee -a "$lines"; }
# The allocator keeps its pages, as in model.sh.
peer_memory=(MALLOC_MMAP_THRESHOLD_=8000000000 MALLOC_TRIM_THRESHOLD_=16000000000 MALLOC_TOP_PAD_=268435456)
peer() { env "${peer_memory[@]}" "$PEER_PYTHON" tests/bench/classifier_peer.py "$dir/modernbert" "$1" 2>/dev/null | sed 's/^/peer /' | tee -a "$lines"; }

for precision in ${BENCH_PRECISION:-float32 bfloat16}; do
    ours "$precision"
    [ -n "${PEER_PYTHON:-}" ] || continue
    peer "$precision"
    ours "$precision"
done
[ -z "${PEER_PYTHON:-}" ] || awk '
    !(($1, $2) in best) || $3 < best[$1, $2] { best[$1, $2] = $3 }
    !(($1, $2) in worked) || $9 < worked[$1, $2] { worked[$1, $2] = $9 }
    $1 == "peer" { order[++count] = $2 }
    END {
        for (i = 1; i <= count; i++)
            printf "%s: %.1f times as fast as the peer, %.1f times by processor time\n", order[i],
                best["peer", order[i]] / best["caravan", order[i]], worked["peer", order[i]] / worked["caravan", order[i]]
    }' "$lines"
