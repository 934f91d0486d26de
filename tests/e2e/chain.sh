# All stages in one shell pipeline, on the CPU, in both precisions: it trains, and the log-probabilities of sampler, scorer
# and trainer are equal to the bit.
. tests/e2e/common.sh
make_data 4
make_model

for precision in float32 bfloat16; do
    "$bin/caravan-source" --stdio --data "$work/data/train.jsonl" --format video-r1 --template none |
        "$bin/caravan-frames" --stdio --store "$work/store" --media-root "$work/data" $small |
        "$bin/caravan-rollout" --stdio --store "$work/store" --model "$work/model" --precision $precision --group-size 4 --max-new-tokens 20 --threads 1 |
        "$bin/caravan-refscore" --stdio --store "$work/store" --model "$work/model" --precision $precision --logprobs all |
        "$bin/caravan-reward" --stdio --method care |
        "$bin/caravan-optim" --stdio --store "$work/store" --model "$work/model" --precision $precision --out "$work/$precision" --groups-per-step 8 \
            --steps 1 --lr 1e-3 >"$work/$precision.jsonl"
    [ "$(grep -c '"trained":{"step":1}' "$work/$precision.jsonl")" = 8 ] || fail "$precision: not all 8 groups were trained"
    difference=$(sed -n 's/.*"logprob_difference_max": \([^,]*\),.*/\1/p' "$work/$precision/metrics.jsonl")
    [ "$difference" = 0 ] || fail "$precision: the trainer's log-probabilities differ from the sampler's by $difference"
    [ -f "$work/$precision/step-000001/config.json" ] || fail "$precision: no checkpoint"
done

# The scorer writes the sampler's numbers: the text of both arrays is equal.
sed 's/.*"completions":\(.*\)"reference":.*/\1/' "$work/float32.jsonl" | grep -o '"logprobs":\[[^]]*\]' | sed 's/"logprobs"://' >"$work/sampled"
sed 's/.*"reference":{\(.*\)"rewards":.*/\1/' "$work/float32.jsonl" | grep -o '"logprobs":\[\[.*\]\]' | grep -o '\[[^][]*\]' >"$work/scored"
[ -s "$work/sampled" ] || fail "no log-probabilities were found"
cmp "$work/sampled" "$work/scored" || fail "sampler and scorer differ"

# Questions about an image and about a clip go through all stages together, with a Qwen2-VL too.
media=$PWD/tests/data/media
cat >"$work/images.jsonl" <<END
{"problem_id": 0, "problem": "What is it?", "data_type": "image", "problem_type": "free-form", "options": [], "path": "$media/alpha.png", "solution": "<answer>x</answer>"}
{"problem_id": 1, "problem": "What is it?", "data_type": "video", "problem_type": "free-form", "options": [], "path": "$media/b-frames.mp4", "solution": "<answer>x</answer>"}
END
sed 's/"vocab_size": 76/"vocab_size": 4096/' tests/data/model/clip/config.json >"$work/qwen2-vl.json"
"$bin/caravan" init "$work/qwen2-vl" --shape "$work/qwen2-vl.json" --tokenizer "$work/model" --seed 3
for model in model qwen2-vl; do
    "$bin/caravan-source" --stdio --data "$work/images.jsonl" --format video-r1 --template none |
        "$bin/caravan-frames" --stdio --store "$work/store-$model" $small |
        "$bin/caravan-rollout" --stdio --store "$work/store-$model" --model "$work/$model" --precision float32 --group-size 2 --max-new-tokens 8 --threads 1 |
        "$bin/caravan-refscore" --stdio --store "$work/store-$model" --model "$work/$model" --precision float32 |
        "$bin/caravan-reward" --stdio --method grpo |
        "$bin/caravan-optim" --stdio --store "$work/store-$model" --model "$work/$model" --precision float32 --out "$work/images-$model" --groups-per-step 2 \
            --steps 1 --lr 1e-3 >"$work/images.out"
    [ "$(grep -c '"trained":{"step":1}' "$work/images.out")" = 2 ] || fail "images, $model: not both groups were trained: $(cat "$work/images.out")"
    grep -q '"logprob_difference_max": 0,' "$work/images-$model/metrics.jsonl" || fail "images, $model: sampler and trainer differ"
done

# Equal seeds give equal groups, for any number of threads and whatever else is in the batch.
run_rollout() {
    "$bin/caravan-rollout" --stdio --store "$work/store-$1" --model "$work/model" --group-size "$2" --max-new-tokens 12 --threads "$3" --precision float32 |
        sed 's/"times":{[^}]*}//' | grep -o '"id":"[^"]*"\|"tokens":\[[^]]*\],"logprobs":\[[^]]*\]'
}
for store in a b; do
    "$bin/caravan-source" --stdio --data "$work/data/train.jsonl" --format video-r1 --template none |
        "$bin/caravan-frames" --stdio --store "$work/store-$store" --media-root "$work/data" $small >"$work/framed-$store"
done
run_rollout a 4 1 <"$work/framed-a" >"$work/one"
for line in 1 2 3 4 5 6 7 8; do sed -n ${line}p "$work/framed-b" | run_rollout b 4 2; done >"$work/two"
cmp "$work/one" "$work/two" || fail "completions depend on the threads or on the rest of the batch"
