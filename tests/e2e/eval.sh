# caravan eval: the figures of scored groups as text, JSON and comma-separated values, and what it refuses.
. tests/e2e/common.sh
bin=$(realpath "$bin")
cd "$work"
eval_() { "$bin/caravan" eval "$@"; }
number=0
# group PROMPT ACCURACY LETTER MORE: a scored group of one completion; PROMPT and MORE are further JSON keys.
group() {
    number=$((number + 1))
    printf '{"id":"e0-%d","sample_id":"s%d","prompt":{"messages":[],"solution":"<answer>C</answer>",%s},"completions":[{"text":"<think> x\\n</think>C","tokens":[1,2,3],"finish":"length"}],"scores":{"accuracy":[%s],"letter":[%s],"correct":[%d],"parsed":[0],"formatted":[1]}%s}\n' \
        $number $number "$1" "$2" "$3" $(($2 == 1)) "${4:-}"
}
judged() { printf ',"consistency":{"verdict":[%s],"reason":[null],"judge":"mine"}' "$1"; }
choice='"problem_type":"multiple choice"'
{
    group "$choice,\"category\":\"Work\",\"level\":\"L1\"" 1 1 "$(judged 1)"
    group "$choice,\"category\":\"Work\",\"level\":\"L2\"" 0 1 "$(judged 0)"
    group "$choice,\"category\":\"object_rel_direction_easy\"" 1 null "$(judged 0)"
    echo
    group "$choice,\"category\":\"object_rel_direction_hard\"" 0 0 "$(judged null)"
    group '"problem_type":"regression","category":"a,\"b\""' 0 null
    group "$choice" 1 1 ',"quarantine":{"stage":"frames","reason":"no clip"}'
} >a.jsonl

cat >expected.json <<'END'
{"files":[{"name":"a","records":6,"answered":5,"quarantined":1,"truncated":5,"parsed":0,"formatted":5,"accuracy":0.4,"accuracy_low":0.1176208,"accuracy_high":0.7692757,"letter":0.5,"letter_low":0.1500390,"letter_high":0.8499610,"mra":0,"mean":0.3333333,"macro_mean":0.3333333,"tokens_mean":3,"categories":{"Work":{"records":2,"accuracy":0.5,"letter":1,"mra":null,"mean":0.5},"a,\"b\"":{"records":1,"accuracy":null,"letter":null,"mra":0,"mean":0},"object_rel_direction_easy":{"records":1,"accuracy":1,"letter":null,"mra":null,"mean":1},"object_rel_direction_hard":{"records":1,"accuracy":0,"letter":0,"mra":null,"mean":0}},"consistency":{"mine":{"judged":3,"consistent":1,"rate":0.3333333,"rate_correct":0.5,"consistent_correct":1,"inconsistent_correct":1,"consistent_wrong":0,"inconsistent_wrong":1}}}]}
END
rounded() { perl -pe 's/(\d\.\d{7})(\d*)/sprintf("%.7f", "$1$2")/ge'; }
eval_ a.jsonl --json | rounded | diff - expected.json || fail "--json"

# A store has the same figures, under its own name; a run has them in its store.
mkdir -p runs/one
"$bin/caravan-judge" --stdio --store runs/one/store <a.jsonl >judged.jsonl 2>/dev/null
eval_ judged.jsonl --json --by level | sed 's/"name":"judged"/"name":"one"/' >level.json
eval_ runs/one/ --json --by level | cmp - level.json || fail "a run"
eval_ runs/one/store --json --by level | sed 's/"name":"store"/"name":"one"/' | cmp - level.json || fail "a store"
grep -q '"categories":{"L1":{"records":1,.*"L2":{"records":1,' level.json || fail "--by level: $(cat level.json)"
eval_ a.jsonl --by problem_type --csv | grep -qx 'categories.multiple choice.records,5' || fail "--by problem_type"

# Several files side by side.
head -n 2 a.jsonl >b.jsonl
: >empty.jsonl
eval_ --csv --any a.jsonl b.jsonl empty.jsonl >table.csv
for line in 'name,a,b,empty' 'records,6,2,0' 'mra,0,,' 'categories.Work.mean,0.5,0.5,' '"categories.a,""b"".mra",0,,' 'consistency.mine.judged,3,2,'; do
    grep -qxF "$line" table.csv || fail "no line $line in $(cat table.csv)"
done
eval_ --any a.jsonl b.jsonl >table
for line in ' *a *b' 'records *6 *2' 'accuracy *40.0 % (11.8..76.9) *50.0 % (9.5..90.5)' '  a,"b" *0.0 % of 1 *-' 'consistency by mine' '  not_judged *1 *0' 's6: frames: no clip'; do
    grep -qx "$line" table || fail "no line '$line' in $(cat table)"
done
expect 65 'a.jsonl: sample s3 is not in b.jsonl; --any' eval_ a.jsonl b.jsonl
expect 65 'a.jsonl: sample s1 is not in empty.jsonl; --any' eval_ empty.jsonl a.jsonl
cat a.jsonl a.jsonl >twice.jsonl
eval_ a.jsonl twice.jsonl --csv | grep -qx 'records,6,12' || fail "the same samples twice"

# Requirements.
eval_ a.jsonl --require accuracy=0.4 --require categories.Work.mean=.5 --require 'categories.a,"b".mra=0' >out || fail "requirements that hold"
expect 1 'b.jsonl: formatted is 2, below 3' eval_ a.jsonl b.jsonl --any --require formatted=3
[ -s out ] || fail "no table"
expect 64 "no number for 'mra'" eval_ a.jsonl b.jsonl --any --require mra=0
expect 64 "no number for 'mean'" eval_ empty.jsonl --require mean=0
expect 64 "no figure 'means'" eval_ a.jsonl --require means=0
expect 64 "no figure 'categories.Work.mean'" eval_ a.jsonl empty.jsonl --any --require categories.Work.mean=0
for bad in accuracy accuracy= accuracy=x accuracy=nan =0.5x; do expect 64 "'$bad' is not KEY=NUMBER" eval_ a.jsonl --require "$bad"; done

# The result file of the released evaluation.
eval_ a.jsonl --released released.json >out
[ "$(grep -c '"problem_type"' released.json)" = 6 ] || fail "released: $(cat released.json)"
for line in '{"problem_type":"multiple choice","solution":"<answer>C</answer>","output":"<think> x\n</think>C","prediction":"<think> x\n</think>C","reward":1,"correct":true,"process":"<think>x</think>"},' \
    '{"problem_type":"multiple choice","solution":"<answer>C</answer>","output":"","prediction":"","reward":0,"correct":false}' \
    '],"final_acc":[{"mean_acc":0.4,"mean_mra":0,"mean_rewards":0.3333333333333333}]}'; do
    grep -qxF "$line" released.json || fail "no line $line in $(cat released.json)"
done
eval_ empty.jsonl --released released.json >out
[ "$(cat released.json)" = '{"results":[],"final_acc":[{"mean_acc":null,"mean_mra":0,"mean_rewards":null}]}' ] || fail "released: $(cat released.json)"

# Bad input.
refused() { # refused PATTERN SED-EXPRESSION: the fifth line, changed so, is refused
    sed "5$2" a.jsonl >bad.jsonl
    cmp -s a.jsonl bad.jsonl && fail "$2 changes nothing"
    expect 65 "bad.jsonl: line 5: \(group e0-4: \)*$1" eval_ bad.jsonl
}
refused 'not scored' 's/"scores"/"others"/'
refused 'not a group: scores.letter: 2 for 1 completions' 's/"letter":\[0\]/"letter":[0,0]/'
refused 'not a group: scores.accuracy\[0\]: 1.5 is not from 0 to 1' 's/"accuracy":\[0\]/"accuracy":[1.5]/'
refused 'not a group: scores.accuracy\[0\]: null' 's/"accuracy":\[0\]/"accuracy":[null]/'
refused 'not a group: completions: missing' 's/"completions"/"c"/'
refused 'not a group: not JSON' 's/}$//'
refused "sample s4: problem type 'puzzle'" 's/multiple choice/puzzle/'
refused 'not a group: consistency.judge: missing' 's/"judge"/"j"/'
refused 'not a group: consistency.verdict: 0 for 1 completions' 's/"verdict":\[null\]/"verdict":[]/'
refused 'not a group: consistency.verdict\[0\]: not 0 or 1' 's/"verdict":\[null\]/"verdict":[0.5]/'
sed 's/"scores"/"others"/' a.jsonl | "$bin/caravan-judge" --stdio --store bare >/dev/null 2>&1
expect 65 'bare: group e0-1: not scored' eval_ bare
expect 65 'none.jsonl: No such file' eval_ none.jsonl
expect 65 'runs: neither it nor its store has a groups.lmdb' eval_ runs
expect 64 'json and csv' eval_ a.jsonl --json --csv
expect 64 'released: takes one' eval_ a.jsonl b.jsonl --released x
expect 64 "by: 'x'" eval_ a.jsonl --by x
expect 64 'an operand is missing' eval_
expect 69 'nowhere' eval_ a.jsonl --released nowhere/x

# caravan report --by step: consistency through a run's training.
report() { "$bin/caravan" report --by step "$@"; }
trained() { # trained STEP ACCURACIES CONSISTENCY
    printf '{"id":"t%s","prompt":{"messages":[],"solution":""},"completions":[{"text":"x"},{"text":"y"}],"consistency":{%s},"rewards":{"accuracy":[%s],"format":[0,0],"total":[0,0]},"trained":{"step":%s}}\n' "$1" "$3" "$2" "$1"
}
{
    trained 3 1,0.9 '"verdict":[1,0],"judge":"mine","probability":[0,0]'
    trained 1 1,1 '"verdict":[0,null],"judge":"mine"'
    trained 3 0,1 '"verdict":[0,1],"judge":"mine"'
    trained 3 1,0 '"probability":[0.5,0.49]'
    sed 1q a.jsonl
} >steps.jsonl
cat >expected.csv <<'END'
name,first_step,last_step,judge,inconsistency_rate,judged,consistent,rate,rate_correct,consistent_correct,inconsistent_correct,consistent_wrong,inconsistent_wrong
a,1,1,mine,1,1,0,0,0,0,1,0,0
a,3,3,mine,0.5,4,2,0.5,1,2,0,0,2
a,3,3,probability,0.5,2,1,0.5,1,1,0,0,1
END
report --csv a=steps.jsonl 2>err | diff - expected.csv || fail "report --csv"
grep -q 'steps.jsonl: 1 groups left out: not trained$' err || fail "report: $(cat err)"
cp steps.jsonl lr=1.jsonl
[ "$(report --csv lr=1.jsonl b=lr=1.jsonl 2>err | cut -d, -f1 | uniq | tr '\n' ' ')" = 'name lr=1.jsonl b ' ] || fail "report of a path with a =: $(cat err)"
# Groups that nobody judged: the message has the commands, which lead to a table.
sed 's/"consistency":{[^}]*},//; s/"solution":""/"problem_type":"multiple choice","solution":"<answer>A<\/answer>"/; s/{"text":"x"},{"text":"y"}/{"text":"<think>So it is A.<\/think><answer>A<\/answer>"},{"text":"y"}/' steps.jsonl >unjudged.jsonl
report unjudged.jsonl 2>err >out
sed -n 's/^caravan: unjudged.jsonl: 4 groups left out: not judged; judge them with: \(.*\), then: \(.*\)$/\1\n\2/p' err >commands
[ "$(wc -l <commands)" = 2 ] || fail "report: $(cat err)"
PATH=$bin:$PATH bash -e commands >out 2>err || fail "$(cat commands): $(cat err)"
grep -q '^consistency by concludes$' out || fail "report of what was judged: $(cat out err)"
# A rate of refscore is that of its work: where no completion has an answer, it has done none.
answered='"prompt_tokens":[1,2,3],"reference":{"answer_logprob":[-1,null]}'
tokens='s/"text":"x"/"text":"x","tokens":[1,2]/; s/"text":"y"/"text":"y","tokens":[1,2,3,4]/'
sed "s/,\"trained.*/,\"times\":{\"rollout\":[5,6],\"refscore\":[7.000,7.001]}}/; $tokens; 1q" steps.jsonl >unanswered.jsonl
sed "s/7.001/7.5/; s/,\"times\"/,$answered&/" unanswered.jsonl >answered.jsonl
"$bin/caravan" report a=unanswered.jsonl b=answered.jsonl >out
grep -qx 'refscore, tokens/s  *-  *10' out && grep -qx 'rollout, tokens/s  *6  *6' out || fail "report: $(cat out)"
report --json --bins 1 --threshold 0.51 steps.jsonl 2>err >steps.json
grep -qxF '{"first_step":1,"last_step":3,"judge":"mine","inconsistency_rate":0.6,"judged":5,"consistent":2,"rate":0.4,"rate_correct":0.6666666666666666,"consistent_correct":2,"inconsistent_correct":1,"consistent_wrong":0,"inconsistent_wrong":2},' steps.json || fail "report --json: $(cat steps.json)"
grep -qF '"judge":"probability","inconsistency_rate":1,"judged":2' steps.json || fail "report --threshold: $(cat steps.json)"
report --bins 2 steps.jsonl 2>err | grep -qx '  1..2  *1  *100.0 %  *0  *0  *1  *0' || fail "report as text"
[ "$(report --json empty.jsonl)" = '{"files":[{"name":"empty.jsonl","steps":[]}]}' ] || fail "report of an empty file"
refused() { # refused PATTERN SED-EXPRESSION
    sed "$2" steps.jsonl >bad.jsonl
    expect 65 "bad.jsonl: line [1-4]: not a group: $1" report bad.jsonl
}
refused 'rewards.accuracy: missing' 's/"accuracy":\[1,0.9\]/"a":[]/'
refused 'rewards.accuracy: 1 for 2' 's/"accuracy":\[1,0.9\]/"accuracy":[1]/'
refused 'consistency.probability: 1 for 2' 's/\[0.5,0.49\]/[0.5]/'
refused 'rewards.accuracy\[1\]: null' 's/"accuracy":\[1,0.9\]/"accuracy":[1,null]/'
refused 'consistency.probability\[0\]: 1.5 is not from 0 to 1' 's/\[0.5,0.49\]/[1.5,0.49]/'
refused 'trained.step: negative' 's/"step":1/"step":-1/'
refused 'consistency.judge: missing' 's/"judge":"mine"/"j":""/'
refused 'consistency.verdict\[1\]: not 0 or 1' 's/"verdict":\[1,0\]/"verdict":[1,2]/'
expect 64 'json and csv' report --json --csv a.jsonl
expect 64 'need --by step' "$bin/caravan" report --csv a.jsonl
