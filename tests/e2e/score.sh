# The score stage and what it leaves in its store.
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
[ "$("$bin/caravan" groups ls --store "$work/store" | wc -l)" = 3 ] || fail "the store lacks a group"
"$bin/caravan" groups ls --store "$work/store" | grep -q '^q *quarantined .*no clip' || fail "the store lacks the quarantined group"

line c puzzle C C >>"$work/in.jsonl"
code=0
score <"$work/in.jsonl" >"$work/out" 2>"$work/err" || code=$?
[ $code = 65 ] && grep -q "line 4: sample c: problem type 'puzzle'" "$work/err" || fail "an unknown problem type: exit $code: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 3 ] || fail "the lines before the bad one are not written"
expect 64 "scoring: 'mine'" score --scoring mine
