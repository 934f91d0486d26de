# refscore lets the reference write answers: Hugging Face's greedy ones (tests/parity/make_answers_golden.py), and by chance the
# same ones alone and in company.
. tests/e2e/common.sh
model=${ANSWERS_GOLDEN:-tests/data/answers}

# refscore FILE OPTION...: the groups without their times.
refscore() {
    input=$1
    shift
    "$bin/caravan-refscore" --stdio --model $model --device cpu --precision float32 "$@" <"$input" 2>"$work/err" | sed 's/,"times":{[^}]*}//'
}
array() { grep -o "\"$1\":\[[^]]*\]" | sed 's/^[^:]*://'; }

# Answers that are closed, ended, empty, too long, in white space, with special tokens; behind tags that are fused with a letter, cut off,
# twice there or missing.
groups=$model/groups.jsonl
refscore $groups --generate answer --generate-temperature 0 >"$work/greedy"
array expected <$groups >"$work/expected"
array generated <"$work/greedy" >"$work/generated"
[ "$(wc -l <"$work/expected")" = 8 ] || fail "the golden groups are not there"
cmp "$work/expected" "$work/generated" || fail "not the greedy answers of transformers"
refscore $groups --generate answer --generate-temperature 1e-40 | cmp - "$work/greedy" || fail "a tiny temperature is not greedy"
refscore $groups --generate answer --generate-temperature 0 --generate-tokens 1 | array generated >"$work/short"
[ "$(sed -n 1p "$work/short")" = '["C","C",null,"C","C","C",null]' ] || fail "a limit of one token: $(cat "$work/short")"
[ "$(sed -n 3p "$work/short")" = '["</","</",null,"</","</","</",null]' ] || fail "a tag that is cut off: $(cat "$work/short")"

# What is scored does not change.
refscore $groups >"$work/off"
sed 's/,"generated":\[[^]]*\]//' "$work/greedy" | cmp - "$work/off" || fail "the scores are others"

# Chance depends on the seed, the group and the completion alone.
chance="--generate answer --generate-temperature 3 --generate-top-p 1"
refscore $groups $chance --threads 1 >"$work/one"
while read -r line; do echo "$line" >"$work/line"; refscore "$work/line" $chance --threads 2; done <$groups >"$work/two"
cmp "$work/one" "$work/two" || fail "answers depend on the threads or on the groups before"
refscore $groups $chance --seed 7 >"$work/other"
cmp -s "$work/one" "$work/other" && fail "another seed gives the same answers"
group() { printf '{"id":"%s","prompt":{"messages":[{"role":"user","content":"x"}],"problem_type":"free-form","solution":"y"},"completions":[%s]}\n' "$1" "$2"; }
answered='{"text":"<think>so</think><answer>C</answer>","finish":"eos"},{"text":"at <answer>","finish":"length"}'
{ group a "$answered"; group a "$answered,{\"text\":\"none\",\"finish\":\"eos\"}"; group b "$answered"; } >"$work/company"
refscore "$work/company" $chance --generate-tokens 12 | grep -o '"generated":.*' | sed 's/,null\]/]/' >"$work/answers"
[ "$(sed -n 1p "$work/answers")" = "$(sed -n 2p "$work/answers")" ] || fail "answers depend on the other completions: $(cat "$work/answers")"
[ "$(sed -n 1p "$work/answers")" != "$(sed -n 3p "$work/answers")" ] || fail "two groups have the same answers"

# The options are part of the key under which the answers are stored.
stored() {
    refscore $groups --store "$work/store" --generate answer "$@" >/dev/null
    grep -o '[0-9]* found in the store' "$work/err"
}
[ "$(stored)" = "0 found in the store" ] || fail "found in an empty store"
[ "$(stored)" = "8 found in the store" ] || fail "not found in the store"
[ "$(stored --generate-tokens 31)" = "0 found in the store" ] || fail "found although the options differ"

expect 64 'generate: .all. is not one of off|answer' "$bin/caravan-refscore" --stdio --model $model --generate all
expect 64 'generate_tokens: 0 is out of range' "$bin/caravan-refscore" --stdio --model $model --generate_tokens 0
expect 64 'generate_top_p: 0 is out of range' "$bin/caravan-refscore" --stdio --model $model --generate-top-p 0
