# A training of adapters (LoRA): what is published and kept is theirs alone, sampler and trainer have the same bits, a killed
# run goes on to the same bytes, any number of ranks gives them, and the checkpoint is an adapter that other stages take.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline "device: cpu"
sed -i 's/groups_per_step: 2, epochs: 4/groups_per_step: 4, epochs: 8/; s/optim: {/optim: {device: cpu, save_every: 3, lora: 4, lora_alpha: 8, /' "$work/p.yaml"

# files_of RUN: prints the hashes of the last checkpoint's files.
files_of() { (cd "$work/$1/checkpoints/latest" && sha256sum -- *.safetensors adapter_config.json); }

run one || fail "one: $(cat "$work/one.err")"
check_steps one 8
want=$(files_of one)
[ "$(cd "$work/one/checkpoints/latest" && echo *.safetensors)" = "adapter_model.safetensors training.safetensors" ] ||
    fail "the checkpoint has $(ls "$work/one/checkpoints/latest")"
grep -q "\"base_model_name_or_path\": \"$(realpath "$work/model")\"" "$work/one/checkpoints/latest/adapter_config.json" || fail "another base is named"
for file in "$work/one/weights"/*; do
    [ "$(stat -c %s "$file")" -lt "$(($(stat -c %s "$work/model/model.safetensors") / 4))" ] || fail "$file has more than adapters"
done
run half --set precision=bfloat16 || fail "bfloat16: $(cat "$work/half.err")"
for name in one half; do
    [ "$(grep -c '"logprob_difference_max": 0,' "$work/$name/metrics.jsonl")" = 8 ] || fail "sampler and trainer differ: $(cat "$work/$name/metrics.jsonl")"
done

run two --set optim.ranks=2 || fail "two ranks: $(cat "$work/two.err")"
[ "$(files_of two)" = "$want" ] || fail "two ranks train something else"
make_held 7
begin again --set force.program="$work/held.sh"
wait_for_step again 4
kill -KILL $pid
wait $pid && fail "the supervisor was not killed"
run again || fail "again: $(cat "$work/again.err")"
[ "$(files_of again)" = "$want" ] || fail "a run that was killed trains something else"
same_model="began with the model $(realpath "$work/model"), too, but with other adapters .*: give lora, lora_alpha, lora_seed and adapter of optim as they were"
for other in lora=5 lora_alpha=9 lora_seed=43 "lora=0 --set optim.lora_alpha=0"; do
    expect 65 "$same_model" "$bin/caravan" run "$work/p.yaml" --set run="$work/again" --set optim.$other
done
cp -r "$work/model" "$work/moved-model"
expect 65 "began with the model .* has other weights or adapters" "$bin/caravan" run "$work/p.yaml" --set run="$work/again" --set model="$work/moved-model" --set optim.lora=5
run other --set optim.lora_seed=43 || fail "another seed: $(cat "$work/other.err")"
[ "$(files_of other)" != "$want" ] || fail "the seed changes nothing"
expect 64 'train_vision: true: with lora, adapters' "$bin/caravan" run "$work/p.yaml" --set run="$work/vision" --set optim.train_vision=true

# The checkpoint, an adapter, beside the model for any stage.
rollout=("$bin/caravan-rollout" --stdio --store "$work/store" --model "$work/model" --group-size 2 --max-new-tokens 4)
adapter=$work/one/checkpoints/latest
"${rollout[@]}" --adapter "$adapter" </dev/null >"$work/out" || fail "an adapter: exit $?"
expect 64 'has rank 4 and alpha 8' "${rollout[@]}" --adapter "$adapter" --lora 5
expect 65 'adapter_config.json' "${rollout[@]}" --adapter "$work/model"
"$bin/caravan" check "$work/p.yaml" --set adapter="$adapter" --set optim.lora=0 --set optim.lora_alpha=8 >"$work/out" 2>&1 || fail "check: $(cat "$work/out")"
run further --set adapter="$adapter" --set optim.lora=0 --set optim.lora_alpha=8 || fail "a training from an adapter: $(cat "$work/further.err")"
[ "$(files_of further)" != "$want" ] || fail "the adapter changes nothing"
expect 65 "$same_model" "$bin/caravan" run "$work/p.yaml" --set run="$work/further"

# What a person does with it: ask the run or the checkpoint, evaluate it as the run's last line says, ask that evaluation,
# and replay the run. The answers are neither the model's own nor those of other adapters.
answer() { "$bin/caravan" ask "$@" --device cpu --threads 1 --json --max-new-tokens 8 "What is it?" 2>"$work/err" | sed 's/.*"completions"/"completions"/; s/,"times".*//'; }
answer "$work/one" >"$work/answer"
grep -q '"logprobs":\[-' "$work/answer" || fail "the run does not answer: $(cat "$work/err")"
answer "$adapter" | cmp - "$work/answer" || fail "the checkpoint answers otherwise"
answer "$work/model" | cmp -s - "$work/answer" && fail "the adapter is not asked"
answer "$work/other" | cmp -s - "$work/answer" && fail "the adapters do not matter"
sed 's/^  - refscore.*//; s/^  - reward.*/  - score: {}/; s/^  - force.*//; s/^  - optim.*//; s/group_size: 2, groups_per_step: 4, epochs: 8/group_size: 1/' "$work/p.yaml" >"$work/eval.yaml"
next=$(grep -o -- '--set model=.* --set adapter=CHECKPOINT' "$work/one.err") || fail "the run ends with: $(cat "$work/one.err")"
"$bin/caravan" run "$work/eval.yaml" --set run="$work/eval" ${next/CHECKPOINT/$adapter} 2>"$work/err" || fail "eval: $(cat "$work/err")"
"$bin/caravan" eval "$work/eval" >"$work/out" || fail "eval: exit $?"
grep -q . "$work/out" || fail "nothing was evaluated"
answer "$work/eval" | cmp - "$work/answer" || fail "the evaluation answers otherwise"
for stage in rollout refscore; do
    "$bin/caravan" replay "$work/one" --stage $stage >"$work/out" 2>"$work/err" || fail "replay $stage: $(cat "$work/out" "$work/err")"
    tail -n 1 "$work/out" | grep -qx '\([0-9]*\) groups: \1 equal to the bit, 0 differ' || fail "replay $stage: $(cat "$work/out")"
done

# Adapters where a model is wanted.
not_a_model="$adapter: adapters, not a model: give the model that they belong to"
expect 65 "$not_a_model" "$bin/caravan" run "$work/p.yaml" --set run="$work/none" --set model="$adapter" --set optim.lora=0 --set optim.lora_alpha=0
expect 64 "$not_a_model" "$bin/caravan" check "$work/p.yaml" --set model="$adapter"
grep -q ': 1 mistake$' "$work/err" || fail "more than one mistake: $(cat "$work/err")"
expect 65 "$not_a_model" "$bin/caravan" plan "$work/p.yaml" --set model="$adapter"
expect 65 "$not_a_model" "$bin/caravan" merge "$adapter" "$work/model" "$work/none"
expect 65 "$not_a_model" "$bin/caravan" tokenize --model "$adapter"
cp -rL "$adapter" "$work/moved"
sed -i 's#"base_model_name_or_path": "[^"]*"#"base_model_name_or_path": "/nowhere"#' "$work/moved/adapter_config.json"
expect 65 "$work/moved: its model, /nowhere, is not here; caravan merge MODEL" "$bin/caravan" ask "$work/moved" "What is it?"
