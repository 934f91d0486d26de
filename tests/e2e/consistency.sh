# The consistency model: caravan init makes it, caravan train-consistency trains it, killed or not, to the same bits, and the
# stage consistency scores with it.
. tests/e2e/common.sh
cat >"$work/shape.json" <<'END'
{"model_type": "modernbert", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 2, "local_attention": 16}
END
"$bin/caravan" init "$work/bert" --shape "$work/shape.json" --train-tokenizer README.md --seed 7
grep -q '"id2label": {"0":"inconsistent","1":"consistent"}' "$work/bert/config.json" || fail "labels: $(cat "$work/bert/config.json")"
grep -q '"classifier_pooling": "mean"' "$work/bert/config.json" || fail "pooling"
sed 's/^  "vocab_size".*/  "id2label": {"0": "yes", "1": "entailment", "2": "no"},\n&/; /label2id/d; s/^  "id2label": {"0":"incons.*//' \
    "$work/bert/config.json" >"$work/labels.json"
"$bin/caravan" init "$work/labels" --shape "$work/labels.json" --tokenizer "$work/bert"
grep -q '"1":"entailment","2":"no"' "$work/labels/config.json" || fail "the labels of a config are replaced"
echo '{"model_type": "modernbert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}' >"$work/default.json"
"$bin/caravan" init "$work/default" --shape "$work/default.json" --tokenizer "$work/bert" # its vocabulary is ModernBERT's
"$bin/caravan-consistency" --stdio --model "$work/default" </dev/null 2>"$work/err" || fail "no vocab_size: $(cat "$work/err")"
expect 65 'no token \[CLS\]' "$bin/caravan" init "$work/x" --shape modernbert-tiny --tokenizer tests/data/answers

# Pairs: the answer is the letter of the thinking, or it is not.
letters=(A B C D)
for i in $(seq 0 79); do
    said=${letters[i % 4]} answer=${letters[(i % 4 + (i / 4 % 2)) % 4]} label=0
    [ $said = $answer ] && label=1
    printf '{"premise":"Question %d\\nIt is %s.","hypothesis":"The final answer is %s","question":"Question %d","label":%d}\n' \
        $((i / 8)) $said $answer $((i / 8)) $label
done >"$work/pairs.jsonl"
echo '{"premise":"Question 0\nIt is.","hypothesis":"?","question":"Question 0","label":null}' >>"$work/pairs.jsonl"
command=("$bin/caravan" train-consistency --data "$work/pairs.jsonl" --model "$work/bert" --pairs-per-step 16 --held-out 0.1 --lr 1e-3)
train() { "${command[@]}" "$@"; }
train --out "$work/whole" --epochs 6 --threads 2 >"$work/whole.json" 2>"$work/err"
grep -q '^{"pairs": 72, "held_out": 8, "accuracy": [01][.0-9]*, "auc": [01][.0-9]*, "rate_consistent": [01][.0-9]*, "rate_inconsistent": [01][.0-9]*}$' \
    "$work/whole.json" || fail "result: $(cat "$work/whole.json")"
grep -q '1 pairs have no label' "$work/err" || fail "pairs without label are not counted"
[ -z "$(ls -d "$work"/whole/state-* 2>/dev/null)" ] || fail "a state is left over"

# Killed when a state is there, and started again with other threads. On a busy machine it may be over before: then it has
# its result, which is written before the states are removed.
for try in $(seq 20); do
    rm -rf "$work/killed"
    "${command[@]}" --out "$work/killed" --epochs 6 --threads 1 >"$work/killed.json" 2>"$work/err" &
    pid=$!
    until compgen -G "$work/killed/state-??????" >/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    [ -e "$work/killed/.training" ] || break
    [ $try != 20 ] || fail "the training was over before it could be killed"
done
[ ! -s "$work/killed.json" ] || fail "a killed training has a result"
expect 64 'other data or options' train --out "$work/killed" --epochs 5
train --out "$work/killed" --epochs 6 --threads 2 >"$work/killed.json" 2>"$work/err" || fail "resuming: $(tail -3 "$work/err")"
grep -q 'resuming from step' "$work/err" || fail "it began anew"
for file in model.safetensors config.json tokenizer.json .training; do
    cmp "$work/whole/$file" "$work/killed/$file" || fail "$file differs after a kill"
done
cmp "$work/whole.json" "$work/killed.json"
train --out "$work/whole" --epochs 6 >"$work/again.json" 2>"$work/err" # finished already
cmp "$work/whole.json" "$work/again.json"
! grep -q ' step ' "$work/err" || fail "a finished training trains again"
expect 64 'already contains a model' train --out "$work/bert"
expect 64 "other data or options" train --out "$work/whole" --seed 3
expect 65 'no pair is left to train on' train --out "$work/x" --held-out 1
sed '2s/"label":[01]/"label":2/' "$work/pairs.jsonl" >"$work/bad.jsonl"
expect 65 'bad.jsonl:2: label: neither' "$bin/caravan" train-consistency --model "$work/bert" --out "$work/x" --data "$work/bad.jsonl"

# The stage: probabilities beside what is there; 0 without an answer or thinking; alone and in a batch, twice, in replicas.
group() { # group ID QUESTION MORE TEXT...
    local id=$1 question=$2 more=$3 separator=
    shift 3
    printf '{"id":"%s","prompt":{"messages":[],"question":"%s","options":["red","blue"],"problem_type":"multiple choice","solution":"<answer>A</answer>"},"completions":[' $id "$question"
    for text; do
        printf '%s{"text":"%s"}' "$separator" "$text"
        separator=,
    done
    printf ']%s}\n' "$more"
}
long=$(printf 'word %.0s' $(seq 60))
{
    group a "What?" ',"consistency":{"verdict":[1,null],"reason":["r",null],"judge":"j","mine":1.50}' \
        "<think>It is A.</think><answer>A</answer>" "<think>It is A.</think><answer>B</answer>"
    group b "Which colour?" "" "<think> </think><answer>A</answer>" "<think>B</think>" "<think>B</think><answer> </answer>" "<think>$long B.</think><answer>B</answer>"
    echo '{"id":"q","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames","reason":"no clip"},  "x":0.10}'
    group c "$long$long" "" "<think>A</think><answer>A</answer>"
} >"$work/groups.jsonl"
score() { "$bin/caravan-consistency" --stdio --model "$work/whole" --max-tokens 120 "$@" <"$work/groups.jsonl" 2>"$work/err" | sed 's/,"times":{[^}]*}//'; }
score --store "$work/store" >"$work/scored" || fail "$(cat "$work/err")"
grep -q '1 pairs were cut to 120 tokens' "$work/err" || fail "no cut is counted: $(cat "$work/err")"
sed -n 1p "$work/scored" | grep -q '"consistency":{"probability":\[0\.[0-9e-]*,0\.[0-9e-]*\],"model":"[0-9a-f]\{16\}","verdict":\[1,null\],"reason":\["r",null\],"judge":"j","mine":1.50}' ||
    fail "probabilities beside verdicts: $(sed -n 1p "$work/scored")"
sed -n 2p "$work/scored" | grep -q '"probability":\[0,0,0,0\.[0-9e-]*\]' || fail "completions without a pair: $(sed -n 2p "$work/scored")"
[ "$(sed -n 3p "$work/scored")" = "$(sed -n 3p "$work/groups.jsonl")" ] || fail "a quarantined group was changed"
sed -n 4p "$work/scored" | grep -q '"quarantine":{"stage":"consistency","reason":"question and hypothesis alone have' || fail "too long: $(sed -n 4p "$work/scored")"
score --batch-tokens 1 --threads 1 | cmp - "$work/scored" || fail "a batch changes the probabilities"
score --store "$work/store" | cmp - "$work/scored" || fail "what is stored differs"
grep -q '2 found in the store' "$work/err" || fail "nothing is found in the store: $(cat "$work/err")"
echo 'It is {option} ({answer})' >"$work/hypothesis"
score --store "$work/store" --hypothesis "$work/hypothesis" | cmp -s - "$work/scored" && fail "the hypothesis has no effect"
sed 's/"question":"What?",//' "$work/groups.jsonl" | head -1 >"$work/bare"
expect 65 'line 1: not a group: prompt.question: missing' bash -c "'$bin/caravan-consistency' --stdio --model '$work/whole' <'$work/bare'"
expect 65 'neither {answer} nor {option}' "$bin/caravan-consistency" --stdio --model "$work/whole" --hypothesis README.md
sed 's/"inconsistent"/"no"/; s/"consistent"/"yes"/' "$work/whole/config.json" >"$work/config"
cp -r "$work/whole" "$work/unlabelled" && cp "$work/config" "$work/unlabelled/config.json"
expect 65 'unlabelled/config.json.*label' "$bin/caravan-consistency" --stdio --model "$work/unlabelled"

# Without the special tokens of a pair the model would read something else.
cp -r "$work/whole" "$work/bare-pairs" && sed -i 's/"post_processor"/"no_post_processor"/' "$work/bare-pairs/tokenizer.json"
expect 65 'bare-pairs: the tokenizer gives a pair 0 special tokens' "$bin/caravan-consistency" --stdio --model "$work/bare-pairs"
expect 65 'bare-pairs: the tokenizer gives a pair 0 special tokens' "$bin/caravan" train-consistency --data "$work/pairs.jsonl" \
    --model "$work/bare-pairs" --out "$work/x"

cat >"$work/run.yaml" <<END
run: $work/run
stages:
  - source: {data: $work/groups.jsonl, shuffle: false, limit: 2}
  - consistency: {model: $work/whole, max_tokens: 120, replicas: 2, threads: 1}
END
"$bin/caravan" run "$work/run.yaml" >/dev/null 2>&1 || fail "the pipeline: $(tail -3 "$work"/run/logs/*.log)"
"$bin/caravan" groups export --store "$work/run/store" | grep -o '"probability":[^]]*' | sort >"$work/in-run"
head -2 "$work/scored" | grep -o '"probability":[^]]*' | sort | cmp - "$work/in-run" || fail "replicas change the probabilities"
