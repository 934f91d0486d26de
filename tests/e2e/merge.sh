# caravan merge: adapters that PEFT has written are added to a model's weights, and what does not fit is exit 65.
. tests/e2e/common.sh
models=$PWD/tests/data/model adapters=$PWD/tests/data/adapters
merge() { "$bin/caravan" merge "$@"; }

merge "$models/even" "$adapters/even" "$work/merged" || fail "merge: exit $?"
for file in "$models/even"/*.json; do
    cmp "$file" "$work/merged/${file##*/}" || fail "${file##*/} is another one"
done
[ "$(stat -c %s "$models/even/model.safetensors")" = "$(stat -c %s "$work/merged/model.safetensors")" ] ||
    fail "the weights have another size"
! cmp -s "$models/even/model.safetensors" "$work/merged/model.safetensors" || fail "nothing was added"
merge "$models/even" "$adapters/even" "$work/again" || fail "merge again: exit $?"
cmp "$work/merged/model.safetensors" "$work/again/model.safetensors" || fail "merged twice, the weights differ"

expect 64 'usage: caravan merge MODEL ADAPTER OUT' merge "$models/even" "$adapters/even"
expect 64 'MODEL cannot be OUT too' merge "$work/merged" "$adapters/even" "$work/again/../merged"
(cd "$work" && mkdir empty && cd empty && expect 64 'an operand is empty; usage: caravan merge MODEL ADAPTER OUT' merge "$models/even" "$adapters/even" "")
[ -z "$(ls "$work/empty")" ] || fail "a model was written into the current directory"
expect 65 'adapter_config.json' merge "$models/even" "$models/even" "$work/none"
expect 65 'adapter_model.safetensors: tensor .* has shape' merge "$models/even" "$adapters/pairs" "$work/none"
cp -r "$adapters/even" "$work/dora"
sed -i 's/"use_dora": false/"use_dora": true/' "$work/dora/adapter_config.json"
expect 65 'adapter_config.json: use_dora is not supported' merge "$models/even" "$work/dora" "$work/none"

# The adapter's own model is here, and MODEL is another one, or a copy of it.
cp -r "$adapters/even" "$work/named"
sed -i "s#\"base_model_name_or_path\": [^,]*#\"base_model_name_or_path\": \"$models/even\"#" "$work/named/adapter_config.json"
merge "$work/merged" "$work/named" "$work/twice" 2>"$work/err" || fail "another base: exit $?"
grep -q "$work/named was trained with $models/even, which has other weights than $work/merged" "$work/err" || fail "another base: $(cat "$work/err")"
cp -r "$models/even" "$work/copy"
merge "$work/copy" "$work/named" "$work/of-copy" 2>"$work/err" || fail "a copy of the base: exit $?"
[ ! -s "$work/err" ] || fail "a copy of the base: $(cat "$work/err")"

# OUT has a model already, or is the adapter's directory; what a training has left beside MODEL stays there.
expect 64 "$work/again/model.safetensors is there already: give another directory, or remove this file" merge "$models/thirds" "$adapters/even" "$work/again"
cmp "$work/merged/model.safetensors" "$work/again/model.safetensors" || fail "a refused merge has written weights"
cp -r "$adapters/even" "$work/adapter"
expect 64 'ADAPTER cannot be OUT too' merge "$models/even" "$work/adapter" "$work/again/../adapter"
diff -r "$adapters/even" "$work/adapter" || fail "a refused merge has changed the adapter"
cp -r "$models/even" "$work/both"
cp "$adapters/even"/adapter_* "$work/both"
for file in progress training.safetensors training.json consolidated.safetensors; do echo x >"$work/both/$file"; done
merge "$work/both" "$adapters/even" "$work/alone" || fail "a model with an adapter beside it: exit $?"
diff -r "$work/merged" "$work/alone" || fail "files that do not belong to the merged model"
[ ! -e "$work/none" ] || fail "a merge that was refused has left something"
