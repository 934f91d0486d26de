# optim's options kl_on, kl_parts and loss: which completions and tokens the loss counts, and how much; and parts, which
# changes neither. Gradients are compared to the bit with those of other options or groups that must come to the same.
. tests/e2e/common.sh
cd "$work"
printf 'abcdefghijklmnopqrstuvwxyz %s' '<think></think><answer></answer>' >text.txt
"$bin/caravan" init model --shape tiny --train-tokenizer text.txt --vocab-size 300 --seed 3 2>err || fail "init: $(cat err)"

# group ID ADVANTAGES TOKENS...: a group without media, with a completion for each array of tokens. $accuracy, $spans and
# $logprobs, where they are set, stand in it.
group() {
    id=$1 advantages=$2 completions= given=
    shift 2
    for tokens in "$@"; do completions="$completions${completions:+,}{\"tokens\":$tokens,\"text\":\"x\"}"; done
    [ -z "${accuracy:-}" ] || given="$given,\"rewards\":{\"accuracy\":$accuracy,\"total\":$accuracy}"
    [ -z "${spans:-}${logprobs:-}" ] ||
        given="$given,\"reference\":{${spans:+\"answer_span\":$spans}${spans:+${logprobs:+,}}${logprobs:+\"logprobs\":$logprobs}}"
    echo "{\"id\":\"$id\",\"prompt\":{\"messages\":[],\"solution\":\"\"},\"prompt_tokens\":[20,21,22],\"completions\":[$completions],\"advantages\":$advantages$given}"
}

# optim NAME OPTIONS...: one step on the groups of standard input; $work/NAME has the gradients and metrics.jsonl.
optim() {
    name=$1
    shift
    "$bin/caravan-optim" --stdio --model model --out "$name" --gradients "$name.gradients" --groups-per-step 1 --lr 0 \
        --precision float32 --threads 1 "$@" >"$name.jsonl" 2>err || fail "$name: $(cat err)"
}

same() {
    cmp "$1.gradients" "$2.gradients" || fail "$1 and $2 have different gradients"
}

differ() {
    ! cmp -s "$1.gradients" "$2.gradients" || fail "$1 and $2 have the same gradients"
}

# close NAME VALUE: the loss of NAME's step.
close() {
    sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$1/metrics.jsonl" | awk -v want="$2" \
        '{ got = $1 } END { d = got - want; exit !(NR && d * d <= 1e-14 * (1 + want * want)) }' ||
        fail "$1: the loss is not $2: $(cat "$1/metrics.jsonl")"
}

# The model's own log-probabilities, as a reference from which nothing diverges.
a='[30,31,32,33]' b='[40,41,42,43]'
own=$(group a '[0,0]' $a $b | "$bin/caravan-refscore" --stdio --model model --logprobs all --precision float32 --threads 1 2>err |
    grep -o '"logprobs":\[\[.*\]\]' | sed 's/"logprobs"://') || fail "refscore: $(cat err)"
own_b="[${own##*\],\[}"
own_b=${own_b%\]}
far='[-1,-2,-3,-4]'

# Only accurate completions have a KL term, and it is divided by the number of all.
logprobs="[$far,$far]"
accuracy='[1,1]' group a '[0,0]' $a $b | optim whole --kl 0.1
accuracy='[1,1]' group a '[0,0]' $a $b | optim both-accurate --kl 0.1 --kl-on accurate
same whole both-accurate
accuracy='[1,0]' group a '[0,0]' $a $b | optim one-accurate --kl 0.1 --kl-on accurate
logprobs="[$far,$own_b]" group a '[0,0]' $a $b | optim one-diverges --kl 0.1
same one-accurate one-diverges
differ whole one-accurate
# An accuracy of 0.1 is none; 0.5 is below the mean of 0.75.
accuracy='[1,0.5]' group a '[0,0]' $a $b | optim mean-accurate --kl 0.1 --kl-on accurate
same one-accurate mean-accurate
accuracy='[0.1,0.1]' group a '[0,0]' $a $b | optim none-accurate --kl 0.1 --kl-on accurate
close none-accurate 0

# Two thinking and two answer tokens of four count twice; what stands behind the answer counts nothing.
spans='[[2,4],[2,4]]' group a '[0,0]' $a $b | optim halves --kl 0.1 --kl-parts separate
group a '[0,0]' $a $b | optim doubled --kl 0.2
same halves doubled
spans='[null,null]' group a '[0,0]' $a $b | optim no-answer --kl 0.1 --kl-parts separate
same no-answer whole
accuracy='[1,0]' spans='[[2,4],null]' group a '[0,0]' $a $b | optim half-accurate --kl 0.1 --kl-parts separate --kl-on accurate
logprobs="[$far,$own_b]" group a '[0,0]' $a $b | optim half-doubled --kl 0.2
same half-accurate half-doubled
spans='[[0,2],[0,2]]' group a '[0,0]' $a $b | optim answer-alone --kl 0.1 --kl-parts separate
own_a="${own#\[}"
own_a="${own_a%%\]*}]"
half_a="[-1,-2,$(echo "$own_a" | cut -d, -f3-)" half_b="[-1,-2,$(echo "$own_b" | cut -d, -f3-)"
logprobs="[$half_a,$half_b]" group a '[0,0]' $a $b | optim first-half --kl 0.2
same answer-alone first-half

# The mean over all tokens of a step: with equal lengths that over completions; otherwise by the length, advantage 0 too.
logprobs=
{ group a '[1,-0.5]' $a $b && group b '[0.25,0]' $b $a; } >equal.in
optim per-completion --groups-per-step 2 <equal.in
optim per-token --groups-per-step 2 --loss tokens <equal.in
same per-completion per-token
{ group a '[1]' '[30]' && group b '[0,1]' $b '[30,31,32]'; } >lengths.in
optim by-length --groups-per-step 2 --loss tokens <lengths.in
close by-length -0.5 # minus the advantage, 1 for four tokens out of eight
optim by-completion --groups-per-step 2 <lengths.in
close by-completion -0.75
logprobs="[$own_b,$own_b]"
group a '[0,0]' $b $b | optim no-divergence --kl 0.1 --loss tokens
close no-divergence 0
logprobs="[$far,$far]" accuracy='[1,0]'
group a '[0,0]' $a $b | optim tokens-kl --kl 0.1 --loss tokens --kl-on accurate
same tokens-kl one-accurate

# metric NAME KEY: of metrics.jsonl.
metric() { sed -n "s/.*\"$2\": \([^,}]*\)[,}].*/\1/p" "$1/metrics.jsonl"; }

# The gradients of groups are added by length, the longest first, in whichever order they come; groups without signal
# last, whatever their length, and they add nothing. Parts are groups of their own with the weight of the whole group.
logprobs= accuracy= spans=
c='[50,51,52,53,54,55]' d='[60,61]' e='[70]'
one=$(group one '[1,-0.5]' $a $c) two=$(group two '[0.25,1]' $d $d) three=$(group three '[-1,0.5]' $e $c) four=$(group four '[0.5,2]' $c $c)
none=$(group none '[0,0]' $c $c)
optim ordered --groups-per-step 5 < <(printf '%s\n' "$one" "$two" "$three" "$four" "$none")
optim reversed --groups-per-step 5 < <(printf '%s\n' "$none" "$four" "$three" "$two" "$one")
optim shuffled --groups-per-step 5 < <(printf '%s\n' "$three" "$none" "$one" "$four" "$two")
same ordered reversed
same ordered shuffled
group four '[1,-0.5,0.25,2]' $c $c $c $c | optim four-whole
group four '[1,-0.5,0.25,2]' $c $c $c $c | optim four-in-two --parts 2
{ group one '[1,-0.5]' $c $c && group two '[0.25,2]' $c $c; } | optim two-groups --groups-per-step 2
same four-in-two two-groups
differ four-in-two four-whole
group three '[1,-0.5,0.25]' $a $c $d | optim three-in-three --parts 3
group three '[1,-0.5,0.25]' $a $c $d | optim three-in-seven --parts 7
same three-in-three three-in-seven
group three '[1,-0.5,0.25]' $a $c $d | optim three-whole
for name in loss nll entropy tokens prompt_tokens completion_length completions grad_norm; do
    for pair in four-whole:four-in-two three-whole:three-in-three; do
        awk -v got="$(metric ${pair#*:} $name)" -v want="$(metric ${pair%:*} $name)" \
            'BEGIN { d = got - want; exit !(want != "" && d * d <= 1e-10 * want * want) }' ||
            fail "$name of $pair: $(cat ${pair#*:}/metrics.jsonl)"
    done
done

# metrics.jsonl of a step on three groups. What no group has is null.
rewarded='"rewards":{"accuracy":[1,0.5],"format":[1,0],"bonus":[0.5,0],"total":[2.5,0.5]},"consistency":{"probability":[0.25,null]}}'
finished='s/"text":"x"}/"text":"x","finish":"length"}/'
uncounted='s|"text":"x"|"text":"<answer>B green.</think><answer>B</answer>"|; s|"solution":""|"solution":"<answer>B</answer>","problem_type":"multiple choice"|'
logprobs= accuracy= spans=
{
    group a '[1,-1]' $a '[50]' | sed "s/}\$/,$rewarded/; $finished"
    accuracy='[1,1]' group b '[0,0]' $a $b
    accuracy='[0,0]' group c '[0,0]' $a $b | sed "$uncounted; s/}\$/,\"consistency\":{\"probability\":[0.5,0.75]}}/"
} >rewarded.in
optim metrics --groups-per-step 3 <rewarded.in
for pair in completion_length:3.5 truncated:0.166666667 reward:0.833333333 reward_std:0.471404521 all_correct:0.333333333 all_wrong:0.333333333 \
    bonus_rate:0.166666667 uncounted:0.166666667 consistency:0.5 kl:0; do
    [ "$(metric metrics ${pair%:*})" = "${pair#*:}" ] || fail "$pair: $(cat metrics/metrics.jsonl)"
done
for name in completion_length:2.66666667 truncated:0 reward_std:null all_correct:null bonus_rate:null entropy:null consistency:null accuracy:null format:null epoch:null; do
    [ "$(metric by-length ${name%:*})" = "${name#*:}" ] || fail "supervised, $name: $(cat by-length/metrics.jsonl)"
done
# Group a alone has a format. The time is that of the step.
[ "$(metric metrics format)" = 0.5 ] || fail "format: $(cat metrics/metrics.jsonl)"
now=$(date +%s)
[ "$(metric metrics time | cut -d. -f1)" -le $now ] && [ "$(metric metrics time | cut -d. -f1)" -gt $((now - 3600)) ] ||
    fail "time: $(cat metrics/metrics.jsonl)"
# The rewards of a user's program may lack a total.
accuracy='[1,0]' group d '[1,-1]' $a $b | sed 's/,"total":[^}]*//' | optim no-total
[ "$(metric no-total reward) $(metric no-total accuracy)" = "null 0.5" ] || fail "no total: $(cat no-total/metrics.jsonl)"
# A process that goes on writes an event file of its own, with the next number.
cp -r metrics resumed
optim resumed --groups-per-step 3 <rewarded.in
cmp metrics/events.out.tfevents.0000000001.caravan resumed/events.out.tfevents.0000000001.caravan || fail "a resumed run changes old events"
grep -q completion_lengths resumed/events.out.tfevents.0000000002.caravan || fail "no events of the resumed run: $(ls resumed)"

# The entropy is that of the given log-probabilities.
logprobs= accuracy='[1,0]'
group a '[0,0]' $a $b | sed 's/"text":"x"}/"text":"x","logprobs":[-1,-2,-3,-6]}/g' | optim entropy
[ "$(metric entropy entropy)" = 3 ] || fail "entropy: $(cat entropy/metrics.jsonl)"

# refused PATTERN OPTIONS...: optim must take the first group, which has all it needs, and refuse the second.
refused() {
    pattern=$1 got=0
    shift
    { accuracy='[1,0]' spans='[[1,2],null]' logprobs="[$far,$far]" group a '[0,0]' $a $b && cat bad.in; } |
        "$bin/caravan-optim" --stdio --model model --out refused --lr 0 --precision float32 --threads 1 --groups-per-step 4 --kl 0.1 \
            "$@" >out.jsonl 2>err || got=$?
    [ $got = 65 ] && grep -q "line 2: not a group: $pattern" err || fail "$*: exit $got, $(cat err)"
    [ "$(wc -l <out.jsonl)" = 1 ] || fail "$*: the group before the bad one is missing"
}
accuracy= spans= logprobs="[$far,$far]"
group b '[0,0]' $a $b >bad.in
refused 'rewards.accuracy: 0 for 2 completions' --kl-on accurate
refused 'reference.answer_span: 0 for 2 completions' --kl-parts separate
accuracy='[1]' spans='[[1,2]]' group b '[0,0]' $a $b >bad.in
refused 'rewards.accuracy: 1 for 2 completions' --kl-on accurate
refused 'reference.answer_span: 1 for 2 completions' --kl-parts separate
accuracy='[1,null]' spans='[[1,5],null]' group b '[0,0]' $a $b >bad.in
refused 'rewards.accuracy\[1\]: null' --kl-on accurate
refused 'reference.answer_span\[0\]: ends after' --kl-parts separate
logprobs= group b '[0,0]' $a $b >bad.in
refused 'reference.logprobs: missing'
expect 64 'kl_parts: separate does not go with loss: tokens' "$bin/caravan-optim" --stdio --model model --out x --loss tokens --kl-parts separate

# A group that an earlier run has trained and that does not fill a step leaves without `trained`.
accuracy= spans=
group a '[0,0]' $a $b | sed 's/}$/,"trained":{"step":7}}/' | optim untrained --groups-per-step 2
grep -q '"id":"a"' untrained.jsonl && ! grep -q '"trained"' untrained.jsonl || fail "trained by this run: $(cat untrained.jsonl)"
