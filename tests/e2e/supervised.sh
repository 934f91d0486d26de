# Supervised training: warm-up as a share of the steps.
. tests/e2e/common.sh
make_data 1 >/dev/null
make_model >/dev/null
optim() { "$bin/caravan-optim" --stdio --model "$work/model" --store "$work/store" --out "$work/run" --threads 1 "$@"; }

"$bin/caravan-source" --stdio --data "$work/data/warm-up.jsonl" --media-root "$work/data" --limit 4 |
    "$bin/caravan-frames" --stdio --store "$work/store" $small >"$work/warm-up.jsonl"

# 0.3 of 4 steps are 2, and the cosine falls over the other 2.
optim --groups-per-step 1 --lr 1e-3 --steps 4 --warmup-ratio 0.3 <"$work/warm-up.jsonl" >"$work/trained.jsonl"
[ "$(grep -o '"lr":[^,]*' "$work/run/metrics.jsonl" | tr -d '\n')" = '"lr": 0"lr": 0.0005"lr": 0.001"lr": 0.0005' ] ||
    fail "learning rates: $(cat "$work/run/metrics.jsonl")"
expect 64 'warmup-ratio: needs --steps' optim --warmup-ratio 0.3
expect 64 'warmup-ratio: 4 steps, but the whole schedule has 4' optim --warmup-ratio 0.76 --steps 4
expect 64 'warmup_ratio: cannot be given together with warmup' optim --warmup-ratio 0.3 --warmup 2 --steps 4
