# caravan check looks at what a pipeline file names: models, data, media, devices and directories. What caravan run would
# refuse at once is a mistake, what makes no sense a warning, each with line and column.
. tests/e2e/common.sh
make_data 2
make_model
cat >"$work/p.yaml" <<'END'
run: run
model: model
stages:
  - source: {data: data/train.jsonl, format: video-r1, media_root: data, group_size: 4, groups_per_step: 2}
  - frames: {}
  - rollout: {device: cpu}
  - refscore: {device: cpu}
  - reward: {}
  - optim: {device: cpu, lr: 1.0e-4, steps: 1}
END
cp "$work/p.yaml" "$work/good.yaml"
"$bin/caravan" check "$work/p.yaml" >"$work/out" 2>"$work/err" || fail "a good file: $(cat "$work/err")"
grep -q ': no mistakes: p, 6 stages in 6 processes' "$work/out" && [ ! -s "$work/err" ] || fail "a good file: $(cat "$work/out" "$work/err")"

# finds PLACE TEXT: check must say TEXT, and it alone, of that line and column of p.yaml, and end with 65.
finds() {
    expect 65 "p\.yaml:$1: $2" "$bin/caravan" check "$work/p.yaml"
    grep -q ': 1 mistake$' "$work/err" || fail "more than one mistake: $(cat "$work/err")"
}
# warns PLACE TEXT: the same for a warning, with exit code 0.
warns() {
    expect 0 "p\.yaml:$1: warning: $2" "$bin/caravan" check "$work/p.yaml"
    grep -q ': no mistakes, 1 warning: p,' "$work/out" || fail "not one warning: $(cat "$work/out" "$work/err")"
}
# change SED: p.yaml is the good file with this change.
change() {
    sed "$1" "$work/good.yaml" >"$work/p.yaml"
    ! cmp -s "$work/p.yaml" "$work/good.yaml" || fail "'$1' changes nothing"
}
# broken: a copy of the model to break, which p.yaml names.
broken() {
    rm -rf "$work/broken"
    cp -r "$work/model" "$work/broken"
    change 's/^model: model/model: broken/'
}
pointer='version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1000\n'

# The model.
broken
rm "$work/broken"/*
expect 65 "p.yaml:2:8: pipeline: model: $work/broken/config.json: No such file" "$bin/caravan" check "$work/p.yaml"
broken && rm "$work/broken/tokenizer.json" && finds 2:8 "pipeline: model: $work/broken: .*vocab.json"
broken && printf "$pointer" >"$work/broken/tokenizer.json" && finds 2:8 'pipeline: model: .*/tokenizer.json: a pointer of Git LFS'
broken && rm "$work/broken/model.safetensors" && finds 2:8 'pipeline: model: .*/model.safetensors: No such file'
broken && printf "$pointer" >"$work/broken/model.safetensors" && finds 2:8 'pipeline: model: .*/model.safetensors: a pointer of Git LFS, not the weights'
broken && truncate -s -1000 "$work/broken/model.safetensors" && finds 2:8 'pipeline: model: .*/model.safetensors: .* lie outside the file'
broken && sed -i 's/"qwen2_5_vl"/"llava"/' "$work/broken/config.json" && finds 2:8 'pipeline: model: .*/config.json: model_type is llava'
broken && sed -i 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 1/' "$work/broken/config.json" && finds 2:8 'pipeline: model: .*/model.safetensors: tensor .* is not a parameter'
sed -i 's/"num_hidden_layers": 1/"num_hidden_layers": 9/' "$work/broken/config.json" && finds 2:8 'pipeline: model: .*/model.safetensors: tensor model.layers.* is missing'
"$bin/caravan" init "$work/bert" --shape modernbert-tiny --train-tokenizer "$work/data/text.txt" --vocab-size 400
change 's/^model: model/model: bert/'
expect 65 "p.yaml:2:8: pipeline: model: $work/bert/config.json: model_type is modernbert" "$bin/caravan" check "$work/p.yaml"
grep -q "p.yaml:2:8: pipeline: model: $work/bert: the tokenizer has no token <|im_start|>" "$work/err" || fail "one of two mistakes: $(cat "$work/err")"
change 's/rollout: {/rollout: {model: bert, /'
expect 65 "p.yaml:6:22: rollout: model: $work/bert/config.json: model_type is modernbert" "$bin/caravan" check "$work/p.yaml"
change 's#^model: model#model: Qwen/Qwen2.5-VL-3B-Instruct#'
finds 2:8 'pipeline: model: .*: No such file or directory; .* hf download Qwen/Qwen2.5-VL-3B-Instruct'

# Adapters: all stages have optim's, which are named once.
cp -r tests/data/adapters/even "$work/adapter"
adapted() { change "s#optim: {#optim: {adapter: adapter, ${1-}#"; }
adapted && finds 9:22 "optim: adapter: $work/adapter: not adapters of $work/model: .*/adapter_model.safetensors: tensor .* has shape"
adapted 'lora: 5, ' && finds 9:22 'optim: adapter: lora 5, lora_alpha 0: .*/adapter has rank [0-9]* and alpha'
mv "$work/adapter/adapter_model.safetensors" "$work/moved"
adapted && finds 9:22 'optim: adapter: .*/adapter_model.safetensors: No such file'
rm "$work/adapter/adapter_config.json" && finds 9:22 'optim: adapter: .*/adapter_config.json: No such file'
adapted 'train_vision: true, ' && expect 65 'p.yaml:9:45: optim: train_vision: true: with adapter, ' "$bin/caravan" check "$work/p.yaml"

# The models of other stages: a consistency model, a judge, a tokenizer for supervised data.
change 's/^  - reward: {}/  - consistency: {model: bert, device: cpu}\n  - reward: {method: cora}/'
"$bin/caravan" check "$work/p.yaml" >"$work/out" 2>&1 || fail "a consistency model: $(cat "$work/out")"
printf 'The answer is a pair.' >"$work/plain.txt"
change 's/^  - reward: {}/  - consistency: {model: bert, device: cpu, hypothesis: plain.txt}\n  - reward: {method: cora}/'
finds 8:57 'consistency: hypothesis: .*/plain.txt: neither {answer} nor {option}'
rm "$work/plain.txt" && finds 8:57 'consistency: hypothesis: .*/plain.txt: No such file'
change 's/^  - reward: {}/  - consistency: {model: model, device: cpu}\n  - reward: {method: cora}/'
expect 65 'p.yaml:8:26: consistency: model: .*/model/config.json: model_type is qwen2_5_vl; only' "$bin/caravan" check "$work/p.yaml"
change 's/^  - reward: {}/  - reward: {}\n  - judge: {judge: likelihood, model: bert, device: cpu}/'
expect 65 'p.yaml:9:39: judge: model: .*/bert/config.json: model_type is modernbert' "$bin/caravan" check "$work/p.yaml"

# The data and their media.
change 's#data: data/train.jsonl#data: data#' && finds 4:20 "source: data: $work/data: not a file"
: >"$work/data/empty.jsonl"
change 's#data/train.jsonl#data/empty.jsonl#' && finds 4:20 'source: data: .*/empty.jsonl: no samples'
printf "$pointer" >"$work/data/pointer.jsonl"
change 's#data/train.jsonl#data/pointer.jsonl#' && finds 4:20 'source: data: .*/pointer.jsonl: a pointer of Git LFS'
sed '2s/"problem_type"/"type"/' "$work/data/train.jsonl" >"$work/data/wrong.jsonl"
change 's#data/train.jsonl#data/wrong.jsonl#' && finds 4:20 'source: data: .*/wrong.jsonl:2: problem_type: missing'
change 's/media_root: data/media_root: model/' && finds 4:68 'source: media_root: none of the 4 images and videos of the first samples can be opened: .*/model/clips/0000.mp4: No such file'
change 's#media_root: data#&/train.jsonl#' && finds 4:68 'source: media_root: .*/data/train.jsonl: Not a directory'
sed '2s#clips/0000#clips/none#' "$work/data/train.jsonl" >"$work/data/one.jsonl"
change 's#data/train.jsonl#data/one.jsonl#' && warns 4:66 'source: media_root: 1 of the 4 images and videos .*/clips/none.mp4: No such file'
cp -r "$work/data/clips" "$work/data/sound"
printf "$pointer" >"$work/data/sound/0000.mp4"
sed 's#clips/#sound/#' "$work/data/train.jsonl" >"$work/data/sound.jsonl"
change 's#data/train.jsonl#data/sound.jsonl#' && warns 4:20 'source: data: .*/sound/0000.mp4: a pointer of Git LFS'
printf 'noise' >"$work/data/sound/0000.mp4" && warns 4:20 'source: data: .*/sound/0000.mp4: .* are quarantined'
change '/frames/d' && finds 5:5 'rollout: the samples have images or videos, and no stage frames comes before it'

# Supervised data.
printf '{"prompt": "a", "completion": "b"}\n' >"$work/data/sft.jsonl"
printf 'run: run\nmodel: model\nstages:\n  - source: {data: data/sft.jsonl, format: sft, groups_per_step: 1}\n  - optim: {device: cpu, lr: 1.0e-4}\n' >"$work/p.yaml"
finds 4:20 'source: data: .*/sft.jsonl:1: neither response nor process'
printf '{"sample_id": "s", "prompt": [{"role": "user", "content": "a"}], "response": "b"}\n' >"$work/data/sft.jsonl"
"$bin/caravan" check "$work/p.yaml" >"$work/out" 2>&1 || fail "supervised data: $(cat "$work/out")"

# Values that make no sense, directories that cannot be written, devices that are not there.
change 's/group_size: 4/limit: 1, group_size: 4/' && finds 4:81 'source: limit: 1 groups do not fill a step of 2'
change 's/group_size: 4/group_size: 1/' && warns 4:86 'source: group_size: 1: .* nothing is learned of the rewards'
change 's/lr: 1.0e-4/lr: 10/' && warns 9:30 'optim: lr: 10: a step changes each weight'
change 's/lr: 1.0e-4/lr: 0/' && warns 9:30 'optim: lr: 0: no weight ever changes'
change '/reward\|optim/d; s/refscore: {/refscore: {store_keep: 2 steps, /' && finds 7:28 'refscore: store_keep: only optim counts steps'
change 's/lr: 1.0e-4/lr: -1/' && finds 9:30 'optim: lr: -1 is out of range'
change 's#^run: run#run: p.yaml/run#' && finds 1:6 "pipeline: run: cannot write to $work/p.yaml/run: Not a directory"
change 's/frames: {/frames: {store: data\/train.jsonl/' && finds 5:21 "frames: store: cannot write to .*: $work/data/train.jsonl is not a directory"
change 's/rollout: {device: cpu/rollout: {device: "cuda:99"/' && finds 6:23 'rollout: device cuda'

# Ranks: each has a GPU of its own, or they share the CPU.
change 's/optim: {device: cpu/optim: {device: cpu, ranks: 2/'
"$bin/caravan" check "$work/p.yaml" >"$work/out" 2>&1 || fail "two ranks: $(cat "$work/out")"
grep -q ': no mistakes: p, 6 stages in 7 processes' "$work/out" || fail "two ranks: $(cat "$work/out")"
change 's/optim: {device: cpu/optim: {device: cpu, gradients: g.safetensors, ranks: 2/' && finds 9:37 'optim: gradients: not with 2 ranks'
change 's/optim: {device: cpu/optim: {ranks: 2/' && finds 9:20 'optim: ranks: 2 ranks need `device`: cpu, or so many GPUs: cuda:\[0-1\]'
change 's/optim: {device: cpu/optim: {ranks: 3, device: "cuda:[0-1]"/'
expect 65 'p.yaml:9:31: optim: device: cuda:\[0-1\]: ranks 0 and 2 of 3 would share cuda:0' "$bin/caravan" check "$work/p.yaml"
change 's/optim: {device: cpu/optim: {ranks: 2, device: "cuda"/'
expect 65 'p.yaml:9:31: optim: device: cuda: ranks 0 and 1 of 2 would share cuda' "$bin/caravan" check "$work/p.yaml"
expect 65 'p.yaml:9:31: optim: device: cuda: ranks 0 and 1 of 2 would share cuda' "$bin/caravan" run "$work/p.yaml"
expect 0 'warning: optim: ranks: 9 ranks, but a step trains 2 at a time (groups_per_step \* parts): the others only wait' "$bin/caravan" check "$work/good.yaml" --set optim.device=cpu --set optim.ranks=9
"$bin/caravan" check "$work/good.yaml" --set optim.device=cpu --set optim.ranks=9 --set optim.parts=9 >"$work/out" 2>&1 || fail "parts: $(cat "$work/out")"
! grep -q warning "$work/out" || fail "ranks that share parts of groups: $(cat "$work/out")"
expect 0 'warning: optim: publish: lend: weights on the CPU are not lent' "$bin/caravan" check "$work/good.yaml" --set optim.device=cpu --set optim.publish=lend
expect 0 '^--set: warning: optim: lr: 10: ' "$bin/caravan" check "$work/good.yaml" --set optim.lr=10

# A chat template of the model's own is not used: what differs is said. White space and quotes do not count.
template() {
    broken
    rm "$work/broken/chat_template.json"
    sed -i "s/\(\"chat_template\": \".*\)$1/\1$2/" "$work/broken/tokenizer_config.json"
    ! cmp -s "$work/broken/tokenizer_config.json" "$work/model/tokenizer_config.json" || fail "the template is the same"
}
template 'You are a helpful' 'You are a cruel' && warns 2:8 "pipeline: model: .*/tokenizer_config.json: the model's own chat template has the system prompt 'You are a cruel assistant.', not"
template 'assistant\\n{% endif' 'assistant\\n<think>{% endif' && warns 2:8 "pipeline: model: .* begins the answer with '<think>'"
template '<|video_pad|>' '<|clip|>' && warns 2:8 'pipeline: model: .* has no <|video_pad|>'
template '{% endfor %}' '{{ 1\/0 }}{% endfor %}' && warns 2:8 'pipeline: model: .* has other statements'
template "message\['role'\] }}" 'message[\\"role\\"] -}}'
"$bin/caravan" check "$work/p.yaml" >"$work/out" 2>&1 && grep -q 'no mistakes: ' "$work/out" || fail "white space: $(cat "$work/out")"

# caravan run says the warnings once.
template 'You are a helpful' 'You are a cruel'
expect 0 '.' "$bin/caravan" run "$work/p.yaml" --set rollout.max_new_tokens=2 --set optim.lr=1 --set source.limit=2 --set frames.max_pixels=3136 --set frames.min_pixels=3136
[ "$(grep -c "p.yaml:2:8: warning: pipeline: model: .*'You are a cruel assistant.'" "$work/err")" = 1 ] || fail "run: $(cat "$work/err")"
[ "$(grep -c '^--set: warning: optim: lr: 1: ' "$work/err")" = 1 ] || fail "run: $(cat "$work/err")"

# Stages on other machines are left out.
key=$("$bin/caravan" keygen "$work/key" 2>"$work/err")
{
    sed "s/rollout: {/rollout: {model: bert, on: far, /" "$work/good.yaml"
    printf 'machines:\n  near: {address: 127.0.0.1, key: "%s"}\n  far: {address: 127.0.0.2, key: "%s"}\n' "$key" "$key"
} >"$work/p.yaml"
"$bin/caravan" check "$work/p.yaml" --machine near >"$work/out" 2>&1 || fail "near: $(cat "$work/out")"
grep -q '^not looked at, because they run on other machines: rollout$' "$work/out" || fail "near: $(cat "$work/out")"
expect 65 'p.yaml:6:22: rollout: model: .*/bert/config.json' "$bin/caravan" check "$work/p.yaml" --machine far
"$bin/caravan" check "$work/p.yaml" >"$work/out" 2>&1 || fail "nowhere: $(cat "$work/out")"
grep -q "^this machine is none of the file's" "$work/out" || fail "nowhere: $(cat "$work/out")"
expect 64 'no machine of that name' "$bin/caravan" check "$work/p.yaml" --machine nowhere
# Neither need they be there; `caravan run` says the same of its own stages.
sed -i 's/model: bert/model: none/; s/^  - refscore/  - mine: {program: none-such, on: far}\n  - refscore/' "$work/p.yaml"
"$bin/caravan" check "$work/p.yaml" --machine near >"$work/out" 2>&1 || fail "near: $(cat "$work/out")"
mv "$work/data" "$work/away" # those of the source, of which rollout inherits media_root
for command in check "run --key $work/key"; do
    expect 65 "p.yaml:6:22: rollout: model: $work/none: No such file" "$bin/caravan" $command "$work/p.yaml" --machine far
    grep -q 'p.yaml:7:5: mine: program: none-such is not in PATH' "$work/err" && grep -q ': 2 mistakes$' "$work/err" ||
        fail "far: $(cat "$work/err")"
done
mv "$work/away" "$work/data"

# What the machine has too little of now is said, and is no mistake.
cp "$work/good.yaml" "$work/p.yaml"
expect 0 '^memory: the run needs [0-9.]* GB, refscore [0-9.]* of them, and [0-9.]* GB are available here now$' \
    "$bin/caravan" check "$work/p.yaml" --set refscore.replicas=256 --set rollout.max_new_tokens=60000
expect 0 "^disk: the run needs [0-9.]* GB in $work/run, and [0-9.]* GB are free there now; 100000001 checkpoints of " \
    "$bin/caravan" check "$work/p.yaml" --set optim.save_every=1 --set optim.keep=100000000
grep -q ': no mistakes: p, 6 stages' "$work/out" || fail "no room is a mistake: $(cat "$work/out" "$work/err")"
expect 0 '; each checkpoint adds [0-9.]* GB unless optim.s keep is set$' \
    "$bin/caravan" check "$work/p.yaml" --set optim.save_every=1 --set frames.store_limit=100000TB
