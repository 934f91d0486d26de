#!/usr/bin/env bash
# caravan ask: the model that comes with caravan answers in the form that it was trained in, as caravan-rollout would; from
# a model directory, a run and a group of a store; a model that was never trained is said to be one.
. "$(dirname "$0")/common.sh"

model=pipelines/miniature/start clip=tests/data/media/b-frames.mp4 picture=tests/data/media/alpha.png
size="--frames min_pixels=3136 --frames max_pixels=3136 --frames image_min_pixels=3136 --frames image_max_pixels=3136"
question=$'Which colour did the shape have at first?\nOptions:\nA. green\nB. yellow\nC. blue\nD. red\n'
form='^<think>.*</think><answer>[A-D]</answer>$'

# An answer comes in pieces; what is printed is all of its text.
"$bin/caravan" ask $model $size --media $clip --media $picture "$question" >"$work/answer" 2>"$work/err" || fail "$(cat "$work/err")"
grep -q "$form" "$work/answer" || fail "not in the trained form: $(cat "$work/answer")"
[ ! -s "$work/err" ] || fail "it said: $(cat "$work/err")"
printf '%s' "$question" | "$bin/caravan" ask $model $size --media $clip --media $picture >"$work/piped"
printf '%s\n' "${question%$'\n'}" | "$bin/caravan" ask $model $size --media $clip --media $picture | cmp - "$work/piped" || fail "a question is read in two ways"

printf ' \n\nOne?\n\n  Two?\n\n' | "$bin/caravan" ask $model --json --max-new-tokens 1 2>/dev/null | grep -q '"text":" \\n\\nOne?\\n\\n  Two?"' || fail "lines of a question are lost"

# The same tokens and log-probabilities as caravan-rollout's, for the same prompt and seed.
ask="$bin/caravan ask $model $size --json --media $clip --media $picture --max-new-tokens 40"
$ask --temperature 3 --top-p 0.9 --seed 5 "$question" >"$work/asked.jsonl" 2>/dev/null
sed 's/,"completions":.*/}/' "$work/asked.jsonl" |
    "$bin/caravan-rollout" --stdio --model $model --group-size 1 --temperature 3 --top-p 0.9 --seed 5 --max-new-tokens 40 \
        --frames.min-pixels 3136 --frames.max-pixels 3136 --frames.image-min-pixels 3136 --frames.image-max-pixels 3136 >"$work/rolled.jsonl"
of_completion() { grep -o '"completions":\[{.*\]' "$1" | sed 's/,"times".*//'; }
[ -n "$(of_completion "$work/asked.jsonl")" ] || fail "no completion: $(cat "$work/asked.jsonl")"
diff <(of_completion "$work/asked.jsonl") <(of_completion "$work/rolled.jsonl") || fail "ask and rollout differ"
$ask --temperature 3 --top-p 0.9 --seed 6 "$question" >"$work/other.jsonl" 2>/dev/null
[ -n "$(of_completion "$work/other.jsonl")" ] || fail "no completion: $(cat "$work/other.jsonl")"
diff -q <(of_completion "$work/asked.jsonl") <(of_completion "$work/other.jsonl") >/dev/null && fail "the seed does nothing"

for temperature in 0 1e-40; do $ask --temperature $temperature "$question" 2>/dev/null >"$work/$temperature.jsonl"; done
diff <(of_completion "$work/0.jsonl") <(of_completion "$work/1e-40.jsonl") || fail "a tiny temperature is not greedy"

# A group of a run: its prompt, its frames' options. A run that trains nothing is asked with the model that it evaluated.
cat >"$work/data.jsonl" <<END
{"id": "a", "prompt": {"messages": [{"role": "user", "content": [{"type": "video", "video": "$clip"}, {"type": "text", "text": "Which colour did the shape have at first?\nOptions:\nA. green\nB. yellow\nC. blue\nD. red\n"}]}], "problem_type": "multiple choice", "solution": "<answer>C</answer>"}}
END
cat >"$work/eval.yaml" <<END
run: run
model: $PWD/$model
seed: 7
stages:
  - source:  {data: data.jsonl, group_size: 1, shuffle: false}
  - frames:  {min_pixels: 3136, max_pixels: 3136}
  - rollout: {top_p: 1.0, max_new_tokens: 48}
  - score:   {}
END
"$bin/caravan" run "$work/eval.yaml" >/dev/null 2>"$work/err" || fail "$(cat "$work/err")"
"$bin/caravan" ask "$work/run" --group "$work/run/e0-000000" --json --temperature 1 --top-p 1 --seed 7 >"$work/again.jsonl" 2>"$work/err"
grep -q '^user> Which colour' "$work/err" || fail "the question is not shown: $(cat "$work/err")"
"$bin/caravan" groups export --store "$work/run/store" >"$work/stored.jsonl"
of_text() { grep -o '"text":"<think>[^"]*"' "$1"; }
[ -n "$(of_text "$work/stored.jsonl")" ] && diff <(of_text "$work/stored.jsonl") <(of_text "$work/again.jsonl") || fail "the group is answered in another way"
# The model of another run, whose media lie elsewhere.
mkdir "$work/other" "$work/nothing"
sed "s,^- source:,&\n    media_root: $work/nothing," "$work/run/pipeline.yaml" >"$work/other/pipeline.yaml"
"$bin/caravan" ask "$work/other" --group "$work/run/e0-000000" --json --temperature 1 --top-p 1 --seed 7 2>/dev/null | cmp - "$work/again.jsonl" || fail "another run's model has another answer"

# Several turns on a terminal: the second prompt has the first answer.
if command -v script >/dev/null; then
    printf 'Which colour?\nAnd which step?\n\004' | script -qec "$bin/caravan ask $model --json" /dev/null >"$work/turns" 2>&1
    grep -q '"role":"assistant".*And which step?' "$work/turns" || fail "no second turn: $(cat "$work/turns")"
fi

# A random model; what cannot be asked.
make_tiny_model
"$bin/caravan" ask "$work/model" --max-new-tokens 4 "What is it?" >/dev/null 2>"$work/err"
grep -q 'all norms are 1 and all biases 0, as in a model that was never trained: unless' "$work/err" ||
    fail "a random model is taken for a trained one: $(cat "$work/err")"
mkdir "$work/empty"
expect 65 'empty: no tokenizer.json' "$bin/caravan" ask "$work/empty" "What is it?"
expect 65 'ask: .*/missing: No such file or directory' "$bin/caravan" ask "$work/missing" "What is it?"
expect 65 'ask: .*/data.jsonl: Not a directory' "$bin/caravan" ask "$work/data.jsonl" "What is it?"
expect 65 'no-clip.mp4: No such file' "$bin/caravan" ask $model --media "$work/no-clip.mp4" "What is it?"
echo text >"$work/text.mp4"
expect 65 'text.mp4: ' "$bin/caravan" ask $model --media "$work/text.mp4" "What is it?"
expect 65 'the store has no group x' "$bin/caravan" ask $model --group "$work/run/x"
expect 64 'no question' "$bin/caravan" ask $model
printf ' \n\t\n' | "$bin/caravan" ask $model >"$work/out" 2>"$work/err" && fail "white space is a question: $(cat "$work/out")"
grep -q 'no question' "$work/err" || fail "white space is refused with: $(cat "$work/err")"
for text in 'What\0is it?' '\0What is it?' 'What is it?\0' 'What is it?\n\0\n'; do
    printf "$text" | "$bin/caravan" ask $model >"$work/out" 2>"$work/err" && fail "a question with a NUL is cut: $(cat "$work/out")"
    grep -q 'ask: the question contains a NUL' "$work/err" || fail "a NUL is refused with: $(cat "$work/err")"
done
expect 64 'frames: ' "$bin/caravan" ask $model --frames fpss=2 "What is it?"
expect 65 'prompt too long' "$bin/caravan" ask $model --max-prompt-tokens 5 "What is it?"
rm "$work/run/pipeline.yaml" && cp "$work/eval.yaml" "$work/run/pipeline.yaml" && sed -i 's/score: .*/optim: {}/' "$work/run/pipeline.yaml"
expect 65 'no checkpoint yet' "$bin/caravan" ask "$work/run" "What is it?"
