# caravan data: what it counts, every mistake with its line, the media that are missing, and its exit codes.
. tests/e2e/common.sh
mkdir -p "$work/videos/epic" "$work/images/epic" "$work/frames/tvqa/a"
cp tests/data/media/three.mp4 "$work/videos/epic/v.mp4"
cp tests/data/media/photo.jpg "$work/images/epic/i.jpg"
seed() {
    echo "{\"question\":\"Next?\",\"choice_a\":\"a\",\"choice_b\":\"b\",\"choice_c\":\"c\",\"choice_d\":\"d\",\"golden_choice_idx\":\"B\",\"task_progress_metadata\":[$3],\"domain\":\"$1\",\"task_level\":\"L3\",\"video_source\":\"epic\",\"video_basename\":\"$2.mp4\",\"current_observation_basename\":\"i.jpg\"}"
}
{ seed Work v 1 && seed "Daily life" v 1 && seed Work none ""; } >"$work/l3.jsonl"
data() { "$bin/caravan" data "$@"; }
data "$work/l3.jsonl" --format seed-bench-r1 --media-root "$work" >"$work/out"
tr -s ' ' <"$work/out" | diff - <(printf '%s\n' 'samples 3' media ' video 2' ' image 3' 'problem types' ' multiple choice 3' categories ' Work 2' ' Daily life 1' \
    levels ' L3 3' sources ' epic 3' 'quarantined 0' 'mistakes 0' 'missing 0' 'undecodable 0') || fail "the table differs"

# Each mistake, each unknown kind and each missing medium is listed, a medium once.
record() { echo "{\"problem_id\":1,\"problem\":\"?\",\"problem_type\":\"OCR\",\"solution\":\"<answer>x</answer>\",\"data_type\":\"$1\",\"path\":\"./$2\"${3-}}"; }
{
    record video none.mp4 && record video none.mp4 && record image videos && record sound a.wav ""
    record frame frames/tvqa/a.mp4 ',"fps":3' && record frame frames/tvqa/b.mp4 ',"fps":3'
    record frame frames/tvqa/a.mp4 "" && echo '{"problem_type":"puzzle"}' && echo "not JSON"
} >"$work/odd.jsonl"
expect 65 'odd.jsonl: 3 mistakes, 1 samples of an unknown kind, 3 media missing, 1 of [0-9]* not' data "$work/odd.jsonl" --open 100 --format video-r1 --media-root "$work" --json
cmp -s <(sed "s|$work/||g" "$work/out") <(echo '{"samples":9,"media":{"video":2,"image":1,"pictures":2},"problem_types":{"OCR":6},"categories":{},"levels":{},"sources":{},"quarantined":[{"line":4,"what":"data_type: '"'sound'"' is not image, video or frame"}],"mistakes":[{"line":7,"what":"fps: missing"},{"line":8,"what":"problem_type: '"'puzzle'"' of sample 8 is not one of multiple choice, numerical, OCR, free-form, regression"},{"line":9,"what":"not JSON: unexpected character at byte 1"}],"missing":[{"line":1,"path":"none.mp4","what":"No such file or directory"},{"line":3,"path":"videos","what":"not a file"},{"line":6,"path":"frames/tvqa/b","what":"No such file or directory"}],"undecodable":[{"line":5,"path":"frames/tvqa/a","what":"the directory has no picture"}]}') ||
    fail "--json: $(cat "$work/out")"
expect 65 '0 media missing' data "$work/odd.jsonl" --format video-r1 --no-media
expect 65 'odd.jsonl: 9 mistakes' data "$work/odd.jsonl"
grep -q 'line 9: not JSON' "$work/out" || fail "no mistake is listed: $(cat "$work/out")"
# An answer that is none of the options, none at all, and media that are there but cannot be decoded: all, or some over the whole file.
choice() { record video "$1" | sed 's/"OCR"/"multiple choice","options":["A. x","B. y"]/; s/<answer>x/<answer>'"$2"'/'; }
echo "no clip" >"$work/videos/text.mp4"
{ choice videos/epic/v.mp4 Z && choice videos/epic/v.mp4 B && choice videos/epic/v.mp4 y && record video videos/epic/v.mp4 | sed 's/<answer>x/<answer>/' && choice videos/text.mp4 A; } >"$work/answers.jsonl"
expect 65 'answers.jsonl: 2 mistakes, .* 0 media missing, 1 of 5 not decodable' data "$work/answers.jsonl" --format video-r1 --media-root "$work"
grep -q "line 1: solution: the answer 'Z' is none of the 2 options, A to B" "$work/out" && grep -q "line 4: solution: no answer in it" "$work/out" || fail "answers: $(cat "$work/out")"
grep -q 'line 5: .*text.mp4: cannot be opened' "$work/out" || fail "not decodable: $(cat "$work/out")"
expect 65 '2 mistakes, .* 0 of 0 not decodable' data "$work/answers.jsonl" --format video-r1 --media-root "$work" --open 0
expect 65 '2 mistakes, .* 1 of 2 not decodable' data "$work/answers.jsonl" --format video-r1 --media-root "$work" --open 2
# A long answer is cut, and the JSON stays UTF-8.
choice none.mp4 "ab$(printf '汉%.0s' {1..40})" >"$work/long.jsonl"
expect 65 '1 mistakes' data "$work/long.jsonl" --format video-r1 --no-media --json
grep -q 'ab汉.* is none of the 2 options' "$work/out" && iconv -f UTF-8 -t UTF-8 "$work/out" >/dev/null || fail "a long answer: $(cat "$work/out")"

# Media outside media_root are counted.
ln -s "$PWD/tests/data/media/three.mp4" "$work/videos/link.mp4"
{ choice videos/link.mp4 A && choice videos/epic/v.mp4 A && choice videos/none.mp4 A; } >"$work/outside.jsonl"
expect 65 '1 media missing' data "$work/outside.jsonl" --format video-r1 --media-root "$work"
grep -q '^  outside media_root  *1$' "$work/out" || fail "a link out of media_root is not counted"

# The example records are records of their layouts, and the page shows them.
for layout in caravan seed-bench-r1 video-r1 sft; do
    data --example $layout >"$work/example.json"
    data "$work/example.json" --format $layout --no-media >"$work/out" || fail "the example of $layout is wrong: $(cat "$work/out")"
    sed 's/^/    /' "$work/example.json" >"$work/shown"
    grep -Fxf "$work/shown" pipelines/README.md | sort -u | cmp -s - <(sort -u "$work/shown") || fail "the page does not show the example of $layout"
done
expect 64 'no layout csv' data --example csv
deep() { printf "%0.s$1" {1..100000}; }
{ echo "{\"prompt\":$(deep '[')$(deep ']')}" && echo "$(deep '{\"a\":')1$(deep '}')"; } >"$work/deep.jsonl"
expect 65 'deep.jsonl: 2 mistakes' data "$work/deep.jsonl"
[ "$(grep -c 'nesting too deep' "$work/out")" = 2 ] || fail "deep nesting: $(cat "$work/out")"
: >"$work/empty.jsonl"
expect 65 'empty.jsonl: no samples' data "$work/empty.jsonl"
expect 65 'none.jsonl' data "$work/none.jsonl"
expect 64 'format' data "$work/odd.jsonl" --format parquet
expect 64 'operand' data

# The demo's data: the wordings of the questions change neither what is asked nor the clips.
make_data 8
"$bin/caravan" make-demo-data "$work/more" --clips 8 --held-out 1 --examples 64 --wordings 4
[ "$(grep -o '"problem": "[^"]*"' "$work/data/train.jsonl" | sort -u | wc -l)" = 2 ] || fail "more than two questions"
[ "$(grep -o '"problem": "[^"]*"' "$work/more/train.jsonl" | sort -u | wc -l)" -gt 4 ] || fail "--wordings has no effect"
for dir in data more; do
    sed -E 's/"text": "[^"]*Options|"problem": "[^"]*"//' "$work/$dir"/{train,held-out,warm-up}.jsonl >"$work/$dir/rest"
done
cmp "$work/data/rest" "$work/more/rest" && diff -r "$work/data/clips" "$work/more/clips" || fail "--wordings changes more than the wording"
expect 64 'wordings' "$bin/caravan" make-demo-data "$work/other" --wordings 5
expect 64 'wordings' "$bin/caravan" make-demo-data "$work/other" --wordings 0
# An answer follows the reasoning or, right in spite of a wrong reasoning, the clip.
follows() { "$bin/caravan" make-demo-data "$work/$1" --clips 1 --held-out 0 --examples 64 --wrong-reasoning 1 --wrong-answer 0 --answers "$1"; }
right='"solution": "<answer>(.)</answer>".*</think><answer>\1</answer>'
follows clip && [ "$(grep -cE "$right" "$work/clip/warm-up.jsonl")" = 64 ] || fail "--answers clip: an answer is wrong"
follows reasoning && [ "$(grep -cE "$right" "$work/reasoning/warm-up.jsonl")" = 0 ] || fail "--answers reasoning: an answer is right"
expect 64 'answers' "$bin/caravan" make-demo-data "$work/other" --answers both
