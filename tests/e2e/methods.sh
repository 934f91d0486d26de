# Every training method, as a pipeline and as a shell line: the final weights are equal to the bit, and other than those of
# the other methods. A pipeline that is killed in its second step and started again ends with the weights of one that is
# not. METHODS names the methods to try and KILLED those to kill; KILLED=all kills each.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
METHODS=${METHODS:-grpo kl-ema kl-ema-ha sepkl-ema-ha nokl densecons refgen care cora}
KILLED=${KILLED:-sepkl-ema-ha refgen}
[ "$KILLED" != all ] || KILLED=$METHODS
make_data 2

# A model of one layer.
sed -e 's/"hidden_size": 128/"hidden_size": 64/; s/"intermediate_size": 320/"intermediate_size": 128/' \
    -e 's/"num_attention_heads": 4/"num_attention_heads": 2/; s/"num_hidden_layers": 4/"num_hidden_layers": 1/' \
    -e 's/"depth": 2/"depth": 1/; s/\[1\]/[0]/; s/"out_hidden_size": 128/"out_hidden_size": 64/' pipelines/miniature/shape.json >"$work/shape.json"
"$bin/caravan" init "$work/model" --shape "$work/shape.json" --train-tokenizer "$work/data/text.txt" --seed 3

# The completions are given, because a random model has no right ones: each group has right ones of unequal likelihood. What
# it generates for refgen has some words of the solutions.
for colour in red green blue yellow; do
    answer="<answer>The shape becomes $colour</answer>"
    printf '{"id": "%s", "prompt": {"messages": [{"role": "user", "content": "Is it %s?"}], ' $colour $colour
    printf '"problem_type": "free-form", "solution": "%s"}, "completions": [' "$answer"
    printf '{"text": "<think>The shape becomes %s</think>%s", "finish": "eos"}, ' $colour "$answer"
    printf '{"text": "<think>It is</think> %s", "finish": "eos"}, ' "$answer"
    printf '{"text": "At first. %s", "finish": "eos"}, ' "$answer"
    printf '{"text": "<think>What is it?</think><answer>A circle</answer>", "finish": "eos"}]}\n'
done >"$work/data.jsonl"

cat >"$work/slow.sh" <<'END'
#!/bin/sh
while read -r line; do
    case $line in *'Is it red?'* | *'Is it green?'*) printf '%s\n' "$line" ;; *) sleep 1000 ;; esac
done
END
chmod +x "$work/slow.sh"
# write_pipeline METHOD: writes its pipeline to p.yaml, and one that stays in its second step to slow.yaml.
write_pipeline() {
    scorer="refscore: {}"
    [ $1 != cora ] || scorer="consistency: {program: $PWD/pipelines/examples/consistency.py}"
    cat >"$work/p.yaml" <<END
run: run
model: model
threads: 1
precision: float32
stages:
  - source: {data: data.jsonl, template: none, group_size: 4, groups_per_step: 2, shuffle: false}
  - $scorer
  - reward: {method: $1}
  - optim: {lr: 1.0e-2}
END
    sed "s/^  - reward:/  - slow: {program: .\/slow.sh}\n&/" "$work/p.yaml" >"$work/slow.yaml"
}

# run_line METHOD: does the pipeline's work as a shell line, with the keys that the method sets in a pipeline.
run_line() {
    scored= trained=
    case $1 in
    grpo) scored="--logprobs all" trained="--kl 0.04 --ema-every 0" ;;
    kl-ema) scored="--logprobs all" trained="--kl 0.04" ;;
    kl-ema-ha) scored="--logprobs all" trained="--kl 0.04 --kl-on accurate" ;;
    sepkl-ema-ha) scored="--logprobs all" trained="--kl 0.04 --kl-on accurate --kl-parts separate" ;;
    refgen) scored="--generate answer" ;;
    esac
    model="--model $work/model --threads 1 --precision float32"
    "$bin/caravan-source" --stdio --data "$work/data.jsonl" --template none --no-shuffle |
        if [ $1 = cora ]; then
            pipelines/examples/consistency.py
        else
            "$bin/caravan-refscore" --stdio $model $scored
        fi |
        "$bin/caravan-reward" --stdio --method $1 |
        "$bin/caravan-optim" --stdio $model --out "$work/line-$1/checkpoints" --groups-per-step 2 --steps 2 --lr 1e-2 \
            $trained >"$work/line-$1.out"
}

for method in $METHODS; do
    write_pipeline $method
    run $method || fail "$method: $(cat "$work/$method.err")"
    check_steps $method 2
    run_line $method || fail "$method: the shell line ended with exit code $?"
    [ "$(weights_of $method)" = "$(weights_of line-$method)" ] || fail "$method: pipeline and shell line differ"
    echo "$(weights_of $method) $method" >>"$work/weights"
done
# In two steps the reference of kl-ema has not moved.
same=$(grep -v ' kl-ema$' "$work/weights" | sort | cut -d' ' -f1 | uniq -d)
[ -z "$same" ] || fail "these methods train the same weights: $(grep "$same" "$work/weights")"

# Beta's schedule gets the number of steps from the run: here the second step has half of it.
write_pipeline cora
run decay --set reward.beta_schedule=decay --set reward.beta_decay=1 || fail "decay: $(cat "$work/decay.err")"
[ "$(grep -c "^ *steps: 2$" "$work/decay/pipeline.yaml")" = 2 ] || fail "the run does not give the reward its steps"
if grep -q "^$(weights_of decay) " "$work/weights"; then fail "beta's schedule has no effect"; fi

for method in $KILLED; do
    write_pipeline $method
    killed=$method-killed
    "$bin/caravan" run "$work/slow.yaml" --set run="$work/$killed" 2>"$work/$killed.err" &
    pid=$!
    wait_for_step $killed 1
    kill -9 $pid
    wait $pid || true
    run $killed || fail "$method: $(cat "$work/$killed.err")"
    check_steps $killed 2
    [ "$(weights_of $killed)" = "$(weights_of $method)" ] || fail "$method: the weights differ after a kill"
done
