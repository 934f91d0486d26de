#!/usr/bin/env bash
# caravan draw and judge-drawn: equal files for equal seeds, annotations that `caravan data` accepts, levels that differ
# in what they should, a right letter that is no likelier than another, and verdicts by the facts that are stated.
. "$(dirname "$0")/common.sh"

draw() { "$bin/caravan" draw "$1" --training 12 --validation 60 --warm-up 16 --letters 20 --rules 8 --review 6 --pretraining 40 --examples 200 --seed "$2"; }
sums() { (cd "$1" && find . -type f | sort | xargs sha256sum); }

# Whatever memory has that nobody has written.
MALLOC_PERTURB_=85 draw "$work/a" 3
MALLOC_PERTURB_=170 draw "$work/b" 3
draw "$work/c" 4
diff <(sums "$work/a") <(sums "$work/b") || fail "two data sets of one seed differ"
for file in annotations/training_6k.jsonl annotations/validation_L1.jsonl warm-up.jsonl videos/miniature/training-00000.mp4; do
    ! cmp -s "$work/a/$file" "$work/c/$file" || fail "$file is the same for two seeds"
done

cd "$work/a"
for file in training_6k validation_L1 validation_L2 validation_L3; do
    "$bin/caravan" data annotations/$file.jsonl --format seed-bench-r1 --media-root . >"$work/data.txt" || fail "$file"
    grep -q '^missing  *0$' "$work/data.txt" || fail "$file: $(cat "$work/data.txt")"
done
for file in annotations/training_with_cot_6k.jsonl letters.jsonl rules.jsonl review.jsonl pretraining.jsonl warm-up.jsonl; do
    "$bin/caravan" data $file --format sft --media-root . >"$work/data.txt" || fail "$file: $(cat "$work/data.txt")"
done

# What is asked on L1 is asked on L2, and none of it on L3.
questions() { grep -o '"question": "[^"]*"' annotations/validation_$1.jsonl | sort -u; }
[ "$(questions L1)" = "$(questions L2)" ] && [ "$(questions L1 | wc -l)" = 6 ] || fail "L1 and L2 ask different things"
[ -z "$(comm -12 <(questions L1) <(questions L3))" ] || fail "L3 asks what L1 asks"
# Of 540 questions a letter is right for 135; five standard deviations are 50.
for letter in A B C D; do
    count=$(cat annotations/validation_L?.jsonl | grep -c "\"golden_choice_idx\": \"$letter\"")
    [ "$count" -ge 85 ] && [ "$count" -le 185 ] || fail "$letter is right $count times"
done
# The answer of an example is what its reasoning concludes, whose letter is right; in the warm-up a share answers what it
# did not conclude.
inconsistent() {
    awk '/<think>/ { match($0, /So (it was|it is|the step is|next is) [^.]*/); said = substr($0, RSTART, RLENGTH); sub(/So (it was|it is|the step is|next is) /, "", said)
        letter = substr(said, length(said)); name = substr(said, 1, length(said) - 2)
        match($0, /<answer>./); if (!index($0, letter ". " name "\\n") || substr($0, RSTART + 8, 1) != letter) count++ } END { print count + 0 }' "$1"
}
[ "$(inconsistent annotations/training_with_cot_6k.jsonl)/$(wc -l <annotations/training_with_cot_6k.jsonl)" = 0/36 ] || fail "an example is inconsistent"
count_of() { grep -c "\"sample_id\": \"$1-" "$2"; }
[ "$(count_of rounds letters.jsonl)/$(count_of some-letters letters.jsonl)" = 10/10 ] || fail "the letters"
[ "$(count_of rules rules.jsonl)/$(count_of letters rules.jsonl)/$(count_of some-letters rules.jsonl)/$(count_of rounds rules.jsonl)" = 3/3/1/1 ] || fail "the rules"
[ "$(count_of rules review.jsonl)/$(count_of letters review.jsonl)/$(count_of some-letters review.jsonl)/$(count_of rounds review.jsonl)" = 1/3/1/1 ] || fail "the review"
[ "$(count_of reasonings pretraining.jsonl)/$(count_of pretraining pretraining.jsonl)" = 10/40 ] || fail "the pretraining"
[ "$(grep 'letters-' letters.jsonl rules.jsonl review.jsonl | inconsistent -)" = 0 ] || fail "a list of letters is inconsistent"
# Words in rounds: what comes again is what came a round before.
grep '"rounds-' letters.jsonl rules.jsonl | sed 's/.*"response": "//; s/"}$//' | awk '{
    for (round = 4; round <= 12; round++) { for (i = round + 1; i <= NF && $i == $(i - round); i++); if (i > NF) break }
    if (NF != 48 || round > 12) exit 1 }' || fail "words that do not come again"
count=$(inconsistent warm-up.jsonl) # of 200, 0.63 are expected: 0.7 x 0.9
[ "$count" -ge 92 ] && [ "$count" -le 160 ] || fail "$count examples of the warm-up are inconsistent"

# A tag ends with a token of its own, so that a reference can go on behind it: refgen.
"$bin/caravan" init "$work/model" --shape "$OLDPWD/pipelines/miniature/shape.json" --train-tokenizer text.txt >"$work/init"
grep -q '"answer"' "$work/model/tokenizer.json" || fail "no token of a tag"
! grep -o '">[^"]"' "$work/model/tokenizer.json" || fail "a tag's end and a letter are one token"

# Verdicts.
group() {
    printf '{"id":"g","prompt":{"messages":[],"problem_type":"multiple choice","solution":"<answer>A</answer>","question":"%s","options":["blue","red","green","yellow"]},"completions":[{"text":"<think>%s</think><answer>%s</answer>","finish":"eos"}]}\n' \
        "$1" "$2" "$3"
}
next='Which colour does the shape get next?\nOptions:\n'
judged() { group "$@" | "$bin/caravan" judge-drawn | grep -o '"verdict":\[[^]]*\]'; }
[ "$(judged "$next" "At first the colour is red, then green. So next is blue A." A)" = '"verdict":[1]' ] || fail "a right conclusion"
[ "$(judged "$next" "At first the colour is red, then green. So next is blue A." B)" = '"verdict":[0]' ] || fail "another answer"
# The facts count, neither a first impression nor what is concluded from them.
[ "$(judged "$next" "It looks like red B. At first the colour is red, then green. So next is blue A." A)" = '"verdict":[1]' ] || fail "an impression"
[ "$(judged "$next" "It looks like blue A. At first the colour is red, then red. So next is red B." A)" = '"verdict":[0]' ] || fail "an answer by impression"
[ "$(judged "$next" "It first the colour is red, then green. So next is blue A." A)" = '"verdict":[1]' ] || fail "facts behind another beginning"
[ "$(judged "$next" "It looks like blue A. So next is blue A." A)" = '"verdict":[0]' ] || fail "an impression alone"
[ "$(judged "$next" "At first the colour is red, then green. So next is red B." A)" = '"verdict":[1]' ] || fail "another conclusion"
[ "$(judged "$next" "At first the colour is red. So next is blue A." A)" = '"verdict":[0]' ] || fail "one fact alone"
[ "$(judged "$next" "At first the colour is red, then green. So next is blue A." E)" = '"verdict":[0]' ] || fail "no such option"
[ "$(judged "$next" "At first the colour is red, then green. So next is blue A." "")" = '"verdict":[null]' ] || fail "no answer"
[ "$(judged "$next" "At first the box has cross, then circle. So next is blue A." A)" = '"verdict":[0]' ] || fail "facts of another question"
code=0
group "What?" "At first" A | "$bin/caravan" judge-drawn >/dev/null 2>"$work/err" || code=$?
[ $code = 65 ] && grep -q 'line 1: not a group: prompt.question: not a question of the miniature' "$work/err" || fail "$code $(cat "$work/err")"
