#!/usr/bin/env bash
# caravan compare and curves: means, intervals and differences of methods with two seeds each, against figures worked out
# by hand; runs of other samples, and what is no comparison, are refused; a picture with a line for each method.
. "$(dirname "$0")/common.sh"

# run FILE ACCURACY/VERDICT...: groups as caravan-score and a judge write them, two of each level.
run() {
    local file=$1 number=0
    shift
    for value in "$@"; do
        number=$((number + 1))
        printf '{"id":"g%s","sample_id":"s%s","prompt":{"messages":[],"problem_type":"multiple choice","solution":"<answer>A</answer>","level":"L%s"},"completions":[{"text":"x","finish":"eos"}],"scores":{"accuracy":[%s]},"consistency":{"verdict":[%s],"reason":[null],"judge":"drawn"}}\n' \
            $number $number $(((number + 1) / 2)) "${value%/*}" "${value#*/}"
    done >"$file"
}
cd "$work"
run a1 1/1 0/0 1/1 1/null
run a2 1/1 1/0 0/1 1/0
run b1 0/1 0/0 0/0 1/1
run b2 0/0 0/0 0/1 1/0

"$bin/caravan" compare care=a1,a2 grpo=b1,b2 --baseline grpo --output csv >out
# Of level L1, care has 50 and 100: mean 75, deviation 35.36, so 12.706 x 35.36 / sqrt(2) = 317.65. By sample, the
# differences to grpo are 100 and 50: 1.96 x 35.36 / sqrt(2) = 49.
for line in accuracy,care,L1,2,75,317.65, accuracy,grpo,all,2,25,0, \
    '"accuracy, difference to grpo",care,L1,2,75,317.65,49' \
    '"consistency, difference to grpo",care,L1,2,25,317.65,49' consistency,care,L1,2,50,0,; do
    grep -qxF "$line" out || fail "no line $line in $(cat out)"
done
[ "$(wc -l <out)" = 19 ] || fail "$(wc -l <out) lines"
"$bin/caravan" compare care=a1,a2 grpo=b1,b2 --baseline grpo >out
grep -q '^  care  *2  75.0 ± 317.6  75.0 ± 317.6  *75.0 ± 0.0$' out || fail "$(cat out)"
"$bin/caravan" compare care=a1,a2 --output markdown | grep -qx '| care | 2 | 75.0 ± 317.6 | 75.0 ± 317.6 | 75.0 ± 0.0 |' || fail markdown
"$bin/caravan" compare care=a1 --output json | grep -qF '{"figure":"accuracy","method":"care","level":"L1","seeds":1,"mean":50,"seeds_half":null,"samples_half":null}' || fail json

# refused CODE TEXT ARGUMENT...: the tool ends with the code and one line, which has the text.
refused() {
    local code=$1 text=$2 got=0
    shift 2
    "$bin/caravan" "$@" >/dev/null 2>err || got=$?
    [ "$got" = "$code" ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$text" err || fail "exit $got, not $code with '$text': $(cat err)"
}
run other 1/1 0/0 1/1
refused 65 "a1: sample s4 is not in other" compare care=a1,other
refused 65 "not scored: scores.accuracy: missing" compare care=<(sed 's/"scores"[^}]*},//' a1)
refused 64 "'a1' is not NAME=RUN[,RUN...]" compare a1
refused 64 "baseline: there is no method 'x'" compare care=a1 --baseline x
refused 64 "baseline: care has 2 runs, but grpo has 1" compare care=a1,a2 grpo=b1 --baseline grpo

mkdir r1 r2
for step in 1 2 3 4; do echo "{\"step\":$step,\"reward\":0.$step,\"entropy\":null}"; done >r1/metrics.jsonl
for step in 1 2 2 3; do echo "{\"step\":$step,\"reward\":1.$step,\"entropy\":null}"; done >r2/metrics.jsonl
printf '{"step":4,"rew' >>r2/metrics.jsonl # a line that is being written
"$bin/caravan" curves care=r1,r2 'a<b=r1' --field reward --field entropy --smooth 1 >picture.svg
[ "$(grep -c '<polyline' picture.svg)/$(grep -c '<polygon' picture.svg)/$(grep -c 'no run has it' picture.svg)" = 2/1/1 ] || fail "$(cat picture.svg)"
! grep -q 'nan\|inf\|a<b' picture.svg || fail "$(cat picture.svg)"
refused 65 "r3/metrics.jsonl: there is none" curves care=r3
echo '{"reward":1}' >r1/metrics.jsonl
refused 65 "r1/metrics.jsonl: line 1: step: missing" curves care=r1
