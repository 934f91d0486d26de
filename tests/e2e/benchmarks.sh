# A small file of each general benchmark, with its own keys and odd records, goes through source, frames, rollout, score and
# eval. A random model has no answers: each is given one.
. tests/e2e/common.sh
make_data 1
make_model
clip=$work/data/clips/0000.mp4
number=0
# record PATH TYPE SOLUTION OPTIONS MORE: a record; each path is linked to a clip unless it says missing.
record() {
    number=$((number + 1))
    case $1 in *missing*) ;; *) mkdir -p "$work/m/$(dirname "$1")" && ln -sf "$clip" "$work/m/$1" ;; esac
    printf '{"problem_id":%d,"problem":"What \\"is\\" it?\\n","data_type":"video","problem_type":"%s","options":[%s],"process":"","solution":"<answer>%s</answer>","path":"./%s","data_source":"x"%s}\n' \
        $number "$2" "$4" "$3" "$1" "$5"
}
kind() { echo ",\"original_question_type\":\"$1\""; }
choices='"A. left","B. right"'
file() { sed '1s/^/[/; $!s/$/,/; $s/$/]/' >"$work/$1.json"; }
{
    record Evaluation/VSI-Bench/scannet/1.mp4 regression 3 "" "$(kind object_counting)"
    record Evaluation/VSI-Bench/scannet/2.mp4 regression 4.0 "" "$(kind room_size_estimation)"
    record Evaluation/VSI-Bench/scannet/2.mp4 regression "about 3" "" "$(kind room_size_estimation)"
    record Evaluation/VSI-Bench/arkitscenes/3.mp4 "multiple choice" B "$choices" "$(kind object_rel_direction_easy)"
    record Evaluation/VSI-Bench/arkitscenes/3.mp4 "multiple choice" A "$choices" "$(kind object_rel_direction_hard)"
} | file vsi
{
    record Evaluation/VideoMMMU/validation_Art_Theory_12.mp4 "multiple choice" B "$(printf '"%s. x",' A B C D E F G H I J K L M)\"N. y\"" ""
    record Evaluation/VideoMMMU/dev_Accounting_3.mp4 numerical 3 "" ""
} | file videommmu
{
    record Evaluation/MMVU/videos/Art/0.mp4 "multiple choice" B '"A knife","B cup","C.D. player","D","E"' ""
    record Evaluation/MMVU/videos/Art/missing.mp4 "multiple choice" B "$choices" ""
} | file mmvu
{
    record Evaluation/MVBench/Video/star/1.mp4 "multiple choice" B "$choices" ',"start":0.2,"end":0.9'
    record Evaluation/MVBench/Video/star/2.mp4 "multiple choice" A "$choices" ',"start":null'
    mkdir -p "$work/m/Evaluation/MVBench/Video/tvqa/s01e01"
    for i in 1 2 3 4 5 6; do ln -s "$PWD/tests/data/media/alpha.png" "$work/m/Evaluation/MVBench/Video/tvqa/s01e01/0000$i.png"; done
    record Evaluation/MVBench/Video/tvqa/s01e01.mp4 "multiple choice" B "$choices" ',"fps":3,"start":0.0,"end":2.0' | sed 's/"video"/"frame"/'
    record Evaluation/MVBench/Video/tvqa/missing.mp4 "multiple choice" B "$choices" ',"fps":3,"start":0.0,"end":2.0' | sed 's/"video"/"frame"/'
} | file mvbench
{
    record Evaluation/TempCompass/videos/1.mp4 "multiple choice" B '"A. yes","B. no"' "$(kind 'fine-grained action')"
    record Evaluation/TempCompass/videos/1.mp4 "multiple choice" B '"A. yes","B. no"' "$(kind direction)" | sed 's/"video"/"sound"/'
} | file tempcompass
{
    record Evaluation/Video-MME/data/1.mp4 "multiple choice" B "$choices" ',"duration":"short"'
    record Evaluation/Video-MME/data/2.mp4 "multiple choice" "" "$choices" ',"duration":"long"'
} | file videomme

benchmarks='vsi videommmu mmvu mvbench tempcompass videomme'
for name in $benchmarks; do
    "$bin/caravan-source" --stdio --data "$work/$name.json" --format video-r1 --group-size 1 --shuffle false >"$work/$name.in" || fail "$name"
done
"$bin/caravan-frames" --stdio --store "$work/store" --media-root "$work/m" --max-frames 32 --seconds-per-grid measured $small < <(cd "$work" && cat ${benchmarks// /.in }.in) |
    "$bin/caravan-rollout" --stdio --store "$work/store" --model "$work/model" --group-size 1 --temperature 0.1 --top-p 0.001 --max-new-tokens 4 --threads 1 |
    sed -E '/"completions":/{s/(.*"text":")([^"\\]|\\.)*"/\1<think>x<\/think> <answer>B<\/answer>"/; /"problem_type":"(numerical|regression)"/s/<answer>B/<answer>3/}' |
    "$bin/caravan-score" --stdio >"$work/scored"
# Each file has its lines again.
first=1
for name in $benchmarks; do
    count=$(wc -l <"$work/$name.in")
    sed -n "$first,$((first + count - 1))p" "$work/scored" >"$work/$name.jsonl"
    first=$((first + count))
done
[ "$(wc -l <"$work/scored")" = $((first - 1)) ] || fail "$((first - 1)) records, but $(wc -l <"$work/scored") groups"
(cd "$work" && "$bin/caravan" eval --any --csv ${benchmarks// /.jsonl }.jsonl) >"$work/table"
for line in name,vsi,videommmu,mmvu,mvbench,tempcompass,videomme records,5,2,2,4,2,2 quarantined,0,0,1,1,1,0 accuracy,0.5,1,0.5,0.5,0.5,0.5 letter,0.5,1,0.5,0.5,0.5,1 \
    mra,0.5,,,,, mean,0.5,1,0.5,0.5,0.5,0.5 macro_mean,0.5833333333333334,1,0.5,0.5,0.5,0.5 tokens_mean,4,4,4,4,4,4 \
    categories.object_counting.mra,1,,,,, categories.room_size_estimation.mra,0.25,,,,, categories.object_rel_direction_hard.accuracy,0,,,,, \
    categories.Art_Theory.records,,1,,,, categories.Accounting.accuracy,,1,,,, categories.Art.records,,,2,,, categories.action_antonym.records,,,,4,, \
    categories.direction.records,,,,,1, categories.short.accuracy,,,,,,1; do
    grep -qxF "$line" "$work/table" || fail "no line $line in $(cat "$work/table")"
done
(cd "$work" && "$bin/caravan" eval mmvu.jsonl tempcompass.jsonl --any) | grep -E '^ *[0-9]+: (frames|source): ' >"$work/failed" || fail "nothing is listed"
[ "$(wc -l <"$work/failed")" = 2 ] || fail "not two that failed: $(cat "$work/failed")"
