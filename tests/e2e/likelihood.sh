# The judge `likelihood`: the letter that it finds is the one of the likeliest text, as refscore computes it.
. tests/e2e/common.sh
make_data 1
make_model
question='What colour is it?\nOptions:\nA. red\nB. green\nC. blue\nD. yellow\n'
# group ID MORE ANSWER...: a group with a completion for each answer, which are behind the same thinking.
group() {
    printf '{"id":"%s","prompt":{"messages":[{"role":"user","content":"%s"}],"problem_type":"multiple choice","solution":"<answer>A</answer>"%s},"media":[],"completions":[' "$1" "$question" "$2"
    shift 2
    comma=
    for answer; do printf '%s{"text":"<think>It is red, then blue.</think>\\n<answer>%s","finish":"length"}' "$comma" "$answer" && comma=,; done
    echo ']}'
}
options=",\"question\":\"$question\",\"options\":[\"red\",\"green\",\"blue\",\"yellow\"]"
judge() { "$bin/caravan-judge" --stdio --judge likelihood --model "$work/model" --precision float32 --threads 1 --store "$work/store" "$@"; }

# The sums of the texts' log-probabilities, and of them the best letter and its share.
group a "" A B C D |
    "$bin/caravan-refscore" --stdio --model "$work/model" --precision float32 --threads 1 --logprobs all 2>/dev/null |
    sed 's/.*"logprobs":\[\[//; s/\]\].*//; s/\],\[/\n/g' | awk -F, '
    { sum[NR] = 0; for (i = 1; i <= NF; i++) sum[NR] += $i; if (NR == 1 || sum[NR] > sum[best]) best = NR }
    END { for (i = 1; i <= NR; i++) all += exp(sum[i] - sum[best]); printf "%s (%.3f)\n", substr("ABCD", best, 1), 1 / all }' >"$work/want"
want=$(cat "$work/want")
letter=${want%% *}
grep -q '^[A-D] (0\.[2-9][0-9]*)$' "$work/want" || fail "refscore: $want"

{
    group b "$options" 'A</answer>' 'B</answer>' 'C</answer>' 'D</answer>' 'none</answer>'
    group c ",\"options\":[\"red\",\"green\"]" 'A</answer>'
    group d "${options/red/<|video_pad|>}" 'A</answer>' | sed 's/It is/<|video_pad|>/'
    echo '{"id":"e","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames","reason":"no clip"}}'
} >"$work/in.jsonl"
for found in 0 3; do # computed, then found
    judge <"$work/in.jsonl" >"$work/out.jsonl" 2>"$work/err" || fail "$(cat "$work/err")"
    grep -q " $found found in the store" "$work/err" || fail "not $found were found: $(cat "$work/err")"
done
verdicts=$(echo ABCD | sed "s/./&,/g; s/$letter/1/; s/[A-D]/0/g")null
sed -n 1p "$work/out.jsonl" | grep -q "\"verdict\":\[$verdicts\]" || fail "verdicts: want $want, got $(sed -n 1p "$work/out.jsonl")"
[ "$(sed -n 1p "$work/out.jsonl" | grep -o "most likely" | wc -l)" = 4 ] || fail "$(sed -n 1p "$work/out.jsonl")"
[ "$(sed -n 1p "$work/out.jsonl" | grep -o "makes $letter most likely (${want#* (}, the answer" | wc -l)" = 4 ] || fail "want $want, got $(sed -n 1p "$work/out.jsonl")"
sed -n 1p "$work/out.jsonl" | grep -q '"the answer names no option"\],"judge":"likelihood"' || fail "an answer without option: $(sed -n 1p "$work/out.jsonl")"
sed -n 2p "$work/out.jsonl" | grep -q '"verdict":\[null\],"reason":\["the prompt has no question' || fail "no question: $(sed -n 2p "$work/out.jsonl")"
sed -n 3p "$work/out.jsonl" | grep -q '"verdict":\[null\],"reason":\[".*placeholder' || fail "a placeholder: $(sed -n 3p "$work/out.jsonl")"
[ "$(sed -n 4p "$work/out.jsonl")" = "$(sed -n 4p "$work/in.jsonl")" ] || fail "a quarantined group was changed"

# Only this judge needs a model, and the model must be one.
expect 64 "missing: model, for judge: likelihood" "$bin/caravan-judge" --stdio --judge likelihood
"$bin/caravan-judge" --stdio </dev/null 2>/dev/null || fail "concludes needs a model"
expect 65 "no tokenizer.json" judge --model "$work/data"
