#!/usr/bin/env bash
# The training of `make demo` by one process and by several ranks, which must end in the same checkpoint, to the byte, on
# the same device. On the CPU, in float32, it is the whole training, with each number of ranks in RANKS (1 2 3 4 8). On the
# emulator of GPUs, in bfloat16, it is its first STEPS (2) steps, with those in EMULATED_RANKS (1 2 4): through the hosts,
# over ZeroMQ, and over the emulator's NCCL; STEPS=0 leaves it out. Prints a line for each training.
set -euo pipefail
build=${BUILD:-build} steps=${STEPS:-2}
mkdir -p "$build"
OUT=$(mktemp -d "$build/rank-demo.XXXXXX") BIN=$build/bin
trap 'rm -rf "$OUT"' EXIT
. tools/miniature/common
differs=0

die() {
    echo "rank-demo: $*" >&2
    exit 1
}

# weights_in FILE: prints the sum of the weights in a file of a checkpoint's sums.
weights_in() { sed -n 's/ .*model.safetensors$//p' "$1"; }

# train GROUP RANKS [ARGUMENT...]: trains, and compares the checkpoint's files with those of the first training of the group;
# a group is a device, or DEVICE,PRECISION.
train() {
    local group=$1 ranks=$2 started=$SECONDS threads=$(($(nproc) / $2)) trained=$out/run sums=$out/sums way verdict=equal
    shift 2
    rm -rf "$trained"
    learn run train 11 --set device="${group%,*}" --set optim.ranks="$ranks" --set optim.threads=$((threads ? threads : 1)) "$@" \
        >"$out/log" 2>&1 || die "$group, ranks: $ranks: $(tail -n 5 "$out/log")"
    # Without a gradient equal weights would say nothing.
    grep -qv '"grad_norm": 0,' "$trained/metrics.jsonl" || die "$group, ranks: $ranks: no step has a gradient"
    way=$(sed -n '/ from GPU to GPU /{s/.*GPU to GPU [a-z]* \(NCCL [0-9.]*\|the memory of the hosts\).*/\1/p;q}' "$trained/logs/optim.log")
    [ "$ranks" -gt 1 ] && way=${way:-ZeroMQ} || way=-
    (cd "$trained/checkpoints/latest" && sha256sum -- *) >"$sums"
    if [ ! -e "$sums-$group" ]; then
        cp "$sums" "$sums-$group"
        verdict=first
    elif ! cmp -s "$sums" "$sums-$group"; then
        verdict="DIFFERS: $({ diff "$sums-$group" "$sums" || true; } | sed -n 's/^[<>] .*  //p' | sort -u | tr '\n' ' ')" differs=1
    fi
    printf '%-12s %5d  %-24s %5d %7d  %s  %s  %s\n' "$group" "$ranks" "${way/#the memory of the hosts/ZeroMQ, through the hosts}" \
        "$(wc -l <"$trained/metrics.jsonl")" $((SECONDS - started)) "$(weights_in "$sums")" \
        "$(sed -n 's/ .*training.safetensors$//p' "$sums" | cut -c1-16)" "$verdict"
}

say "data: clips of shapes, and questions on them"
make_data $without_start
printf '%-12s %5s  %-24s %5s %7s  %-64s  %-16s  %s\n' device ranks transport steps seconds "sha256 of the weights" "of the state" "all files"
for ranks in ${RANKS:-1 2 3 4 8}; do train cpu "$ranks"; done
if [ "$steps" -gt 0 ]; then
    first=(--set source.max_steps="$steps" --set optim.steps=240) # with the learning rates of the whole training
    for nccl in none "$(realpath "$build/lib/libcaravan-emulated.so")"; do
        for ranks in ${EMULATED_RANKS:-1 2 4}; do
            [ "$nccl" = none ] || [ "$ranks" -gt 1 ] || continue # one process sends nothing
            CARAVAN_NCCL=$nccl train emulated "$ranks" "${first[@]}"
        done
    done
    train cpu,bfloat16 1 "${first[@]}" --set precision=bfloat16
    [ "$(weights_in "$out/sums")" = "$(weights_in "$out/sums-emulated")" ] && same="the same weights" || same="other weights"
    echo "in bfloat16 the CPU and the emulator train $same, and need not train the same"
fi
[ $differs = 0 ] || die "the number of ranks, or the transport, changes what is trained"
echo "with each of these numbers of ranks all files of the final checkpoint are equal to the byte"
