#!/usr/bin/env bash
# caravan agreement: how far judges agree on the same completions, against figures worked out by hand; judges of other
# completions are refused.
. "$(dirname "$0")/common.sh"

# judged FILE KEY VALUES...: groups of two completions each, with their verdicts or their probabilities.
judged() {
    local file=$1 key=$2 number=0
    shift 2
    for values in "$@"; do
        number=$((number + 1))
        printf '{"id":"g%s","prompt":{"messages":[],"solution":"<answer>A</answer>"},"completions":[{"text":"x"},{"text":"%s"}],"consistency":{"%s":[%s]%s}}\n' \
            $number $number $key "$values" "$([ $key != verdict ] || echo ',"reason":[null,null],"judge":"rule"')"
    done >"$file"
}
cd "$work"
judged rule verdict 1,1 1,0 0,0 0,null
judged other verdict 1,0 1,0 1,0 null,1
judged model probability 0.9,0.5 0.51,0.49 0.2,0 null,0.3
tac other >reversed # the order of the groups does not count

"$bin/caravan" agreement rule reversed model --output csv >out
# rule and other both judged 6, of which 4 are the same. The shares of the consistent are 3/6 and 3/6, so by chance 0.5
# are, and kappa is (4/6 - 0.5) / 0.5 = 1/3.
for line in judged,7,7,7 kappa,1,0.33333333333333,1 agreement,1,0.66666666666666,1 consistent,0.42857142857142,0.57142857142857,0.42857142857142 \
    consistent_found,1,0.66666666666666,1 inconsistent_found,1,0.66666666666666,1; do
    pattern=$(echo "$line" | sed 's/\./\\./g; s/\([0-9]\{10\}\),/\1[0-9]*,/g; s/\([0-9]\{10\}\)$/\1[0-9]*/')
    grep -qx "$pattern" out || fail "no line $line in $(cat out)"
done
"$bin/caravan" agreement rule model --threshold 0.52 >out
grep -q '^agreement  *100.0 %  *66.7 %$' out && grep -q '^inconsistent_found  *100.0 %  *100.0 %$' out || fail "$(cat out)"

refused() {
    local code=$1 text=$2 got=0
    shift 2
    "$bin/caravan" agreement "$@" >/dev/null 2>err || got=$?
    [ "$got" = "$code" ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$text" err || fail "exit $got, not $code with '$text': $(cat err)"
}
head -n 3 other >short
refused 65 "rule: group g4 is not in short" rule short
sed 's/"text":"2"/"text":"3"/' other >changed
refused 65 "changed: group g2 has other completions in rule" rule changed
sed 's/,"consistency.*/}/' other >none
refused 65 "none: no verdicts and no probabilities" rule none
: >none
refused 65 "none: no verdicts and no probabilities" rule none

# A file with both is two judges, and a name that comes again has a number.
sed 's/"verdict"/"probability":[1,0],"verdict"/' rule >both
"$bin/caravan" agreement both rule rule --output json >out
grep -qF "{\"judges\":[{\"name\":\"rule\",\"judged\":7," out && grep -qF "{\"name\":\"probability\",\"judged\":8," out && grep -qF "{\"name\":\"rule 2\"," out && grep -qF "{\"name\":\"rule 3\"," out || fail "$(cat out)"
