#!/usr/bin/env bash
# A training step on the miniature of SEED-Bench-R1, 4 groups of 8 completions: its time in the pipeline of
# pipelines/miniature/train.yaml, from the clips to the new weights; with PEER_PYTHON against the same step in PyTorch as the
# released code does it, and without what it does besides; same model and data, interleaved (caravan, peers, caravan).
set -euo pipefail
dir=$(cd "$(dirname "$BIN")" && pwd)/bench/miniature steps=${BENCH_STEPS:-40}
echo "== a training step on the miniature: 4 groups of 8 completions"
OUT=$dir
. tools/miniature/common
once data make_data $without_start --validation 1
data=$out/data model=$PWD/$start

ours() {
    rm -rf "$dir/run"
    "$BIN/caravan" run pipelines/miniature/train.yaml --set source.data="$data/annotations/training_6k.jsonl" \
        --set source.media_root="$data" --set source.epochs=100 --set source.max_steps="$steps" --set model="$model" \
        --set run="$dir/run" >"$dir/run.log" 2>&1 || { cat "$dir/run.log"; exit 1; }
    # Of the first steps, what starts and fills the pipeline is left out.
    awk '{
        match($0, /"time": [0-9.]+/); now = substr($0, RSTART + 8, RLENGTH - 8)
        match($0, /"completion_length": [0-9.]+/); tokens += substr($0, RSTART + 21, RLENGTH - 21)
        if (NR > 5) seconds += now - before
        before = now
    } END { printf "caravan %.3f s a step, %.1f tokens a completion\n", seconds / (NR - 5), tokens / NR }' "$dir/run/metrics.jsonl"
}

ours | tee "$dir/lines"
if [ -n "${PEER_PYTHON:-}" ]; then
    # As in model.sh: PyTorch keeps its pages.
    for kind in released fast; do
        MALLOC_MMAP_THRESHOLD_=8000000000 MALLOC_TRIM_THRESHOLD_=16000000000 MALLOC_TOP_PAD_=268435456 \
            "$PEER_PYTHON" tests/bench/miniature_peer.py "$data" "$model" 5 $kind 2>"$dir/peer.log" | tee -a "$dir/lines" || { tail -n 3 "$dir/peer.log"; exit 1; }
    done
    ours | tee -a "$dir/lines"
    awk '
        $1 == "caravan" && (!best || $2 < best) { best = $2 }
        $1 ~ /^peer/ { peer[$1] = $2 }
        END { printf "the released code takes %.1f times as long (asked: 10), PyTorch without what it does besides %.1f times\n",
            peer["peer-released"] / best, peer["peer-fast"] / best }' "$dir/lines"
fi
