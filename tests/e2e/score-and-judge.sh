# The stages score and judge, and what they leave in their store.
. tests/e2e/common.sh
line() { # line ID TYPE SOLUTION TEXT
    printf '{"v":1,"id":"%s","sample_id":"%s","prompt":{"messages":[],"problem_type":"%s","solution":"<answer>%s</answer>"},"completions":[{"text":"%s","mine":1.50}]}\n' "$1" "$1" "$2" "$3" "$4"
}
set_aside='{"id":"q","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames","reason":"no clip"},  "x":0.10}'
score() { "$bin/caravan-score" --stdio "$@"; }

{ line a "multiple choice" C "<think>x</think><answer>C. cup</answer>"; echo "$set_aside"; line b OCR exit exit; } >"$work/in.jsonl"
score --store "$work/store" <"$work/in.jsonl" >"$work/out.jsonl" 2>/dev/null
sed 's/,"times":{[^}]*}//' "$work/out.jsonl" | diff - <(
    sed -n 1p "$work/in.jsonl" | sed 's/}$/,"scores":{"accuracy":[0],"letter":[1],"correct":[0],"parsed":[1],"formatted":[1]}}/'
    echo "$set_aside"
    sed -n 3p "$work/in.jsonl" | sed 's/}$/,"scores":{"accuracy":[1],"letter":[null],"correct":[1],"parsed":[0],"formatted":[0]}}/'
) || fail "scores"
score --scoring released <"$work/in.jsonl" 2>/dev/null | grep '"id":"b"' | grep -q '"accuracy":\[0\]' || fail "scoring: released"
expect 64 'store_keep: only optim counts steps' score --store "$work/store" --store-keep '3 steps'
[ "$("$bin/caravan" groups ls --store "$work/store" | wc -l)" = 3 ] || fail "the store lacks a group"
"$bin/caravan" groups ls --store "$work/store" | grep -q '^q *quarantined .*no clip' || fail "the store lacks the quarantined group"

line c puzzle C C >>"$work/in.jsonl"
scored() { score <"$work/in.jsonl"; }
expect 65 "line 4: sample c: problem type 'puzzle'" scored
[ "$(wc -l <"$work/out")" = 3 ] || fail "the lines before the bad one are not written"
expect 64 "scoring: 'mine'" score --scoring mine

judge() { "$bin/caravan-judge" --stdio --store "$work/judged" "$@"; }
sed 's/"solution"/"options":["pan","pot","cup"],"solution"/; s/think>x</think>It is D or B. \&</; s/}$/,"consistency":{"probability":[0.5],"mine":1e400}}/' "$work/out.jsonl" >"$work/judge.in"
sed -i "2s/.*/$set_aside/" "$work/judge.in"
for i in 1 2; do # computed, then found
    judge <"$work/judge.in" >"$work/judge.out" 2>"$work/err"
    sed -n 1p "$work/judge.out" | grep -q '"consistency":{"probability":\[0.5\],"verdict":\[0\],"reason":\["the last option named is B, the answer is C"\],"judge":"concludes","mine":1e400}' ||
        fail "verdict: $(cat "$work/judge.out")"
    sed -n 3p "$work/judge.out" | grep -q '"verdict":\[null\],"reason":\["the question is no multiple choice"\]' || fail "no verdict: $(cat "$work/judge.out")"
    [ "$(sed -n 2p "$work/judge.out")" = "$set_aside" ] || fail "a quarantined group was changed"
done
grep -q '2 found in the store' "$work/err" || fail "the verdicts are not found again: $(cat "$work/err")"
[ "$("$bin/caravan" groups ls --store "$work/judged" | wc -l)" = 3 ] || fail "the judge's store lacks a group"
expect 64 "judge: 'mine'" judge --judge mine

# caravan pairs: the judged completions as training data.
pairs() { "$bin/caravan" pairs "$@"; }
expect 65 'judge.out: line 1: group a: not a group: prompt.question: missing' pairs "$work/judge.out"
{
    echo '{"id":"a","prompt":{"messages":[],"solution":"","question":"Which?\n","options":["pan","pot"]},"trained":{"step":7},"completions":[{"text":"B"},{"text":"<think> a pot </think><answer>B</answer>"},{"text":"<think>x</think><answer>A</answer>"}],"consistency":{"verdict":[1,0,null]}}'
    echo '{"id":"q","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames"},"completions":[{"text":"<think>x</think><answer>A</answer>"}]}'
    echo '{"id":"b","prompt":{"messages":[],"solution":"","question":"What?"},"completions":[{"text":"<think>\"y\"</think><answer>z</answer>"}]}'
} >"$work/pairs.in"
{
    echo '{"premise":"Which?\n\na pot","hypothesis":"The final answer is B","question":"Which?\n","label":0,"group":"a","completion":1,"step":7}'
    echo '{"premise":"Which?\n\nx","hypothesis":"The final answer is A","question":"Which?\n","label":null,"group":"a","completion":2,"step":7}'
    echo '{"premise":"What?\n\"y\"","hypothesis":"The final answer is z","question":"What?","label":null,"group":"b","completion":0,"step":null}'
} >"$work/pairs.all"
pairs --all "$work/pairs.in" 2>"$work/err" | diff - "$work/pairs.all" || fail "pairs --all"
grep -q '3 pairs of 4 completions of 3 groups' "$work/err" || fail "pairs: $(cat "$work/err")"
tail -n 1 "$work/pairs.in" >"$work/unjudged"
pairs "$work/unjudged" >"$work/out" 2>"$work/err" || fail "a group without a pair: $(cat "$work/err")"
[ ! -s "$work/out" ] || fail "pairs of nothing: $(cat "$work/out")"
echo 'So {answer}, {option}.' >"$work/hypothesis"
pairs --hypothesis "$work/hypothesis" "$work/pairs.in" 2>/dev/null | diff - <(sed -n '1s/The final answer is B/So B, pot./p' "$work/pairs.all") || fail "pairs --hypothesis"
echo no >"$work/hypothesis"
expect 65 'hypothesis: neither {answer} nor {option}' pairs --hypothesis "$work/hypothesis" "$work/pairs.in"
sed -i 's/1,0,null/0/' "$work/pairs.in"
expect 65 'line 1: group a: not a group: consistency.verdict: 1 for 3 completions' pairs "$work/pairs.in"
