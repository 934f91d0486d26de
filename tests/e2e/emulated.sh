# The CUDA backend's own sources, on the emulator: rollout, refscore and optim compute with `device: emulated` in both
# precisions. The log-probabilities of sampler, scorer and trainer are equal to the bit, and the trainer's loss and
# gradient norm are those of the CPU.
. tests/e2e/common.sh
[ -e "$bin/../lib/libcaravan-emulated.so" ] || exit 0 # the build for the thread sanitizer lacks it
make_data 1
make_model
"$bin/caravan-source" --stdio --data "$work/data/train.jsonl" --format video-r1 --template none >"$work/all"
head -n 1 "$work/all" |
    "$bin/caravan-frames" --stdio --store "$work/store" --media-root "$work/data" $small >"$work/framed"

# metric NAME FILE: prints the number of the only step.
metric() {
    sed -n "s/.*\"$1\": \([^,}]*\)[,}].*/\1/p" "$2"
}

# near A B BOUND: the relative difference is within the bound.
near() {
    awk -v a="$1" -v b="$2" -v bound="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; if (b < 0) b = -b; exit !(d <= bound * b) }'
}

for precision in float32 bfloat16; do
    model=(--model "$work/model" --precision $precision --store "$work/store")
    "$bin/caravan-rollout" --stdio --device emulated "${model[@]}" --group-size 2 --max-new-tokens 6 <"$work/framed" |
        "$bin/caravan-refscore" --stdio --device emulated "${model[@]}" --logprobs all |
        "$bin/caravan-reward" --stdio --method grpo >"$work/rewarded"
    # All rewards of an untrained model are equal. These advantages give the loss a gradient.
    sed 's/"advantages":\[[^]]*\]/"advantages":[1,-1]/' "$work/rewarded" >"$work/given"
    grep -q '"advantages":\[1,-1\]' "$work/given" || fail "$precision: there are no advantages in $(cat "$work/rewarded")"
    for device in emulated cpu; do
        "$bin/caravan-optim" --stdio --device $device "${model[@]}" --out "$work/$precision-$device" --groups-per-step 1 --steps 1 \
            --lr 1e-3 --kl 0.04 <"$work/given" >"$work/trained"
        grep -q '"trained":{"step":1}' "$work/trained" || fail "$precision on $device: the group was not trained"
    done
    ours=$work/$precision-emulated/metrics.jsonl theirs=$work/$precision-cpu/metrics.jsonl
    [ "$(metric logprob_difference_max "$ours")" = 0 ] ||
        fail "$precision: the trainer's log-probabilities differ from the sampler's: $(cat "$ours")"
    [ "$(metric kl "$ours")" = 0 ] || fail "$precision: the scorer's log-probabilities differ from the trainer's: $(cat "$ours")"
    bound=1e-4
    [ $precision = float32 ] || bound=0.03
    near "$(metric grad_norm "$ours")" "$(metric grad_norm "$theirs")" $bound && near "$(metric nll "$ours")" "$(metric nll "$theirs")" $bound ||
        fail "$precision: emulated $(cat "$ours"), the CPU $(cat "$theirs")"
    near "$(metric grad_norm "$ours")" 0 0 && fail "$precision: there was no gradient: $(cat "$ours")"
done
exit 0
