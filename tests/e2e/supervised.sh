# Supervised training: warm-up as a share of the steps, and training on selected completions.
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

# Rejection sampling: what is selected of sampled groups is what optim then trains on.
question() { # ID COMPLETIONS
    echo '{"id":"'"$1"'","sample_id":"s","prompt":{"messages":[{"role":"user","content":"Which?"}],"problem_type":"multiple choice","solution":"<answer>B</answer>"},"completions":['"$2"']}'
}
right='{"tokens":[1,2],"logprobs":[-1,-1],"versions":[0,0],"text":"<think>é</think><answer>B</answer>","finish":"eos"}'
wrong='{"text":"<think>.</think><answer>A</answer>","finish":"eos"}'
cut='{"text":"<think>.</think><answer>B</answer> and","finish":"length"}'
{ question e0-000000 "$wrong,$right,$right"; question e0-000001 "$cut,$wrong"; question e0-000002 "$cut,$right"; } |
    "$bin/caravan-reward" --stdio --method grpo --store "$work/sampled" >"$work/sampled.jsonl"
pick() { "$bin/caravan" groups select "$@"; }
pick --where 'accuracy = 1' --where 'format = 1' "$work/sampled.jsonl" >"$work/chosen.jsonl" 2>"$work/talk"
grep -q '3 of 7 completions of 3 groups' "$work/talk" || fail "$(cat "$work/talk")"
chosen() {
    echo '{"v":1,"id":"'"$1"'","sample_id":"s/'"$1"'","prompt":{"messages":[{"role":"user","content":"Which?"}],"problem_type":"multiple choice","solution":"<answer>B</answer>"},"completions":[{"text":"<think>é</think><answer>B</answer>","finish":"eos"}],"advantages":[1]}'
}
diff <(chosen e0-000000/1; chosen e0-000000/2; chosen e0-000002/1) "$work/chosen.jsonl" || fail "what was selected"
diff <(pick --store "$work/sampled" --per-group 1 --where 'accuracy = 1' --where 'finish != length') <(sed -n '1p;3p' "$work/chosen.jsonl") ||
    fail "one for each group of the store"
expect 0 'no completion has a value of consistency.verdict' pick --where 'verdict = 1' "$work/sampled"
[ ! -s "$work/out" ] || fail "a missing verdict was selected"
expect 64 "groups: --where: 'letter = B': letter is compared with a number" pick --where 'letter = B' "$work/sampled"
expect 64 'where is missing' pick "$work/sampled"
expect 64 'store or a file of groups is missing' pick --where 'accuracy = 1'
expect 64 'where and --per-group belong to select' "$bin/caravan" groups ls --store "$work/sampled" --where 'accuracy = 1'
expect 65 'nowhere: No such file' pick --where 'accuracy = 1' "$work/nowhere"
echo '{"id":"x"}' >>"$work/sampled.jsonl"
expect 65 'sampled.jsonl: line 4: not a group: prompt: missing' pick --where 'accuracy = 1' "$work/sampled.jsonl"

"$bin/caravan-source" --stdio --no-shuffle --data "$work/chosen.jsonl" | optim --out "$work/chosen" --groups-per-step 3 --steps 1 >"$work/trained.jsonl"
grep -q '"id":"e0-000002","sample_id":"s/e0-000002/1".*"trained":{"step":1}' "$work/trained.jsonl" || fail "$(cat "$work/trained.jsonl")"

# The published data: what optim trains on is what transformers' chat template gives behind the last assistant's turn.
path=$(grep -o -m1 'clips/[^"]*' "$work/data/warm-up.jsonl" | head -n 1)
cat >"$work/sft.jsonl" <<END
{"sample_id":"s","prompt":[{"role":"user","content":[{"type":"video","video":"$path"},{"type":"text","text":"?"}]}],"response":"<think>a</think>\n<answer>B</answer>"}
{"problem_id":7,"problem":"?","data_type":"video","problem_type":"numerical","options":[],"path":"./$path","process":"<think>é</think>","solution":"<answer>42</answer>"}
END
tiny="--set threads=1 --set precision=float32 --set model=$work/model --set source.media_root=$work/data --set frames.min_pixels=3136 --set frames.max_pixels=3136"
# run FILE NAME OPTION...: runs one of the shipped pipelines with the small model in $work/NAME.
run() {
    file=$1 name=$2
    shift 2
    timeout -k 10 200 "$bin/caravan" run "pipelines/$file.yaml" $tiny --set run="$work/$name" "$@" 2>"$work/$name.err" || fail "$name: $(cat "$work/$name.err")"
}
run sft-video-r1 sft --set source.data="$work/sft.jsonl" --set source.groups_per_step=1 --set optim.groups_per_step=1
for text in '<think>a</think>\n<answer>B</answer>' '<think>é</think>\n<answer>42</answer>'; do
    echo '{"text":"'"$text"'<|im_end|>\n"}'
done | "$bin/caravan" tokenize --model "$work/model" | tr -d ' {}' | sort >"$work/wanted"
"$bin/caravan" groups export --store "$work/sft/store" >"$work/learned.jsonl"
grep -o '"completions":\[{"tokens":[^]]*]' "$work/learned.jsonl" | sed 's/.*{//' | sort | diff "$work/wanted" - || fail "the tokens of the responses"
grep -o '"tokens": *[0-9]*' "$work/sft/metrics.jsonl" | grep -o '[0-9]*$' | sort | diff <(awk -F, '{print NF}' "$work/wanted" | sort) - ||
    fail "other tokens were trained: $(cat "$work/sft/metrics.jsonl")"
expect 64 'missing: model' "$bin/caravan-source" --stdio --format sft --data "$work/sft.jsonl"
echo '{"sample_id":"s","prompt":[],"response":"x"}' >>"$work/sft.jsonl"
expect 65 'sft.jsonl:3: prompt: empty' "$bin/caravan-source" --stdio --format sft --model "$work/model" --data "$work/sft.jsonl"

# From questions to selected answers to training, with the shipped pipelines.
run rejection-sampling sampling --set source.data="$work/data/train.jsonl" --set source.format=video-r1 --set source.limit=2 \
    --set source.group_size=2 --set rollout.max_new_tokens=4
pick --store "$work/sampling/store" --per-group 1 --where 'accuracy <= 1' --where 'completions.tokens <= 4' >"$work/chosen.jsonl"
[ "$(wc -l <"$work/chosen.jsonl")" = 2 ] || fail "one of each group: $(cat "$work/chosen.jsonl")"
run warm-up trained --set source.data="$work/chosen.jsonl" --set source.groups_per_step=2 --set optim.groups_per_step=2
grep -q '"step": 1' "$work/trained/metrics.jsonl" || fail "$(cat "$work/trained.err")"
