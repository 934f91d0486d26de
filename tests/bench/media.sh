#!/usr/bin/env bash
# Decoding and resizing a clip: cold, from the cache, and with PEER_PYTHON against decord and torchvision, interleaved.
# BENCH_CLIPS names other clips than the drawn one.
set -euo pipefail
build=$(dirname "$BIN") dir=$(dirname "$BIN")/bench
mkdir -p "$dir"
echo "== media: a clip of 30 s, 640x360, decoded and resized to 16 frames"
"$build/tests/bench/media" resize
[ -f "$dir/clip.mp4" ] || "$build/tests/bench/media" draw "$dir/clip.mp4"
for clip in ${BENCH_CLIPS:-$dir/clip.mp4}; do
    lines=
    for round in 1 2 3; do
        lines+=$("$build/tests/bench/media" decode "$clip")$'\n'
        [ -z "${PEER_PYTHON:-}" ] || lines+=$("$PEER_PYTHON" "$(dirname "$0")/media_peer.py" "$clip" 252 392 2>/dev/null)$'\n'
    done
    printf '%s' "$lines" | awk -v clip="$clip" '
        function least(old, new) { return old == "" || new < old ? new : old }
        $1 == "caravan" { cold = least(cold, $4 + 0); one = least(one, $8 + 0); cached = least(cached, $(NF - 1) + 0) }
        $1 == "peer" { peer = least(peer, $4 + 0) }
        END {
            printf "clip %s: cold %.1f ms (one thread %.1f), from the cache %.3f ms: %.0f times as fast\n", clip, cold, one, cached, cold / cached
            if (peer != "") printf "  peer (decord, torchvision) %.1f ms: cold %.1f times as fast, from the cache %.0f times\n", peer, peer / cold, peer / cached
        }'
done
