# An evaluation of SEED-Bench-R1 with the pipeline that is shipped, from annotations to the table: all levels and domains,
# one clip missing, one sample without a clip. Killed and interrupted in the middle and started again, it has the same table.
. tests/e2e/common.sh
make_data 4
make_model
mkdir -p "$work/sb/videos/demo" "$work/sb/images/demo" "$work/a" "$work/b"
ln -s "$work"/data/clips/*.mp4 "$work/sb/videos/demo/"
ln -s "$PWD/tests/data/media/alpha.png" "$work/sb/images/demo/now.png"
number=0
# sample LEVEL DOMAIN GOLD PROGRESS CLIP: a line of a validation file.
sample() {
    number=$((number + 1))
    printf '{"sample_id":"v-%d","question":"What comes next?","choice_a":"open the pot","choice_b":"wash the cup","choice_c":"stir the tea","choice_d":"sit down","golden_choice_idx":"%s","task_progress_metadata":[%s],"task_level":"%s","domain":"%s","video_source":"demo","video_basename":"%s","current_observation_basename":"now.png"}\n' \
        $number "$3" "$4" "$1" "$2" "$5"
}
progress='{"narration_text":"opens the door","start_frame":0,"stop_frame":9}'
for level in L1 L2 L3; do
    letters=ABCD
    for domain in "Daily life" Hobbies Recreation Work; do
        sample $level "$domain" ${letters:0:1} "$progress" 000$((number % 4)).mp4
        letters=${letters:1}
    done
done >"$work/sb/validation.jsonl"
{
    sample L3 Work B "$progress" missing.mp4
    sample L1 Hobbies B "" 0000.mp4
} >>"$work/sb/validation.jsonl"
# A random model has no answer to anything: a program gives it one, takes its time, and counts. While there is a file hold
# it gives three.
cat >"$work/answer.sh" <<'END'
#!/bin/sh
exec sed -u -E -e "e sleep 0.15; while [ -e ${0%/*}/hold ] && [ \$(wc -l <${0%/*}/count) -ge 3 ]; do sleep 0.05; done; echo >>${0%/*}/count" -e 's/(.*"text":")([^"\\]|\\.)*"/\1<think>A, or else wash the cup.<\/think>\\n<answer>B<\/answer>"/'
END
chmod +x "$work/answer.sh"
sed 's/^  - score:.*/  - answer: {program: .\/answer.sh}\n&/' pipelines/eval/seed-bench-r1-L1.yaml >"$work/eval.yaml"

# start NAME OPTION...: starts the evaluation in $work/NAME, with its standard error in $work/err. It can be interrupted,
# even if these tests run in the background of a shell.
start() {
    name=$1
    shift
    env --default-signal=INT "$bin/caravan" run "$work/eval.yaml" --set run="$work/$name" --set model="$work/model" --set source.data="$work/sb/validation.jsonl" \
        --set source.media_root="$work/sb" --set precision=float32 --set threads=1 --set rollout.max_new_tokens=4 \
        --set frames.min_pixels=3136 --set frames.max_pixels=3136 --set frames.image_max_pixels=3136 "$@" 2>>"$work/err"
}
start a/eval || fail "$(cat "$work/err")"
grep -q "done: 13 groups done, 1 quarantined" "$work/err" || fail "$(cat "$work/err")"
grep -qx "caravan: next: caravan eval $work/a/eval" "$work/err" || fail "no next command: $(cat "$work/err")"
"$bin/caravan" eval "$work/a/eval" >"$work/want" || fail "the table: $(cat "$work/want")"
"$bin/caravan" eval "$work/a/eval" --json >"$work/want.json"
# Five of fourteen have B as the right answer; one of these is the clip that is missing, which is a wrong answer.
for figure in '"records":14' '"answered":13' '"quarantined":1' '"truncated":13' '"parsed":13' '"formatted":13' '"accuracy":0.2857' '"letter":0.2857' \
    '"mra":null' '"tokens_mean":4' '"Work":{"records":4,"accuracy":0,' '"Hobbies":{"records":4,"accuracy":1,' \
    '"concludes":{"judged":13,"consistent":13,"rate":1,"rate_correct":1,"consistent_correct":4,"inconsistent_correct":0,"consistent_wrong":9,'; do
    grep -qF "$figure" "$work/want.json" || fail "no $figure in $(cat "$work/want.json")"
done
"$bin/caravan" eval "$work/a/eval" --by level --csv | grep -E 'L[123].(records|accuracy)' | tr '\n' ' ' | grep -q '^categories.L1.records,5 categories.L1.accuracy,0.4 categories.L2.records,4 categories.L2.accuracy,0.25 categories.L3.records,5 categories.L3.accuracy,0.2 $' ||
    fail "by level: $("$bin/caravan" eval "$work/a/eval" --by level --csv)"
grep -q 'v-13: frames: .*missing.mp4' "$work/want" || fail "the sample that failed is not listed: $(cat "$work/want")"

# A run is named by its directory, its pipeline file or its store. Each line has the sample, the state and the score.
"$bin/caravan" groups ls "$work/a/eval" >"$work/listed"
grep -q '^e0-[0-9]*  *scored  *v-2  *multiple choice  *1 completions  accuracy 1$' "$work/listed" || fail "groups ls: $(cat "$work/listed")"
grep -q '^e0-[0-9]*  *quarantined  *v-13  .*missing.mp4' "$work/listed" || fail "groups ls: $(cat "$work/listed")"
"$bin/caravan" frames ls "$work/a/eval" | grep -q ' [^ ]*/videos/demo/0001.mp4$' || fail "frames ls: $("$bin/caravan" frames ls "$work/a/eval")"
sed "s|^run:.*|run: $work/a/eval|; s|^model:.*|model: $work/model|; s|data: .*jsonl|data: $work/sb/validation.jsonl|; s|media_root: .*|media_root: $work/sb|" "$work/eval.yaml" >"$work/own.yaml"
for run in "$work/a/eval/pipeline.yaml" "$work/a/eval/store" "$work/own.yaml"; do
    "$bin/caravan" groups ls "$run" | cmp - "$work/listed" || fail "groups ls $run"
    [ "$("$bin/caravan" groups export "$run" e0-000000 | wc -l)" = 1 ] || fail "groups export $run"
    "$bin/caravan" frames ls "$run" | cmp - <("$bin/caravan" frames ls "$work/a/eval") || fail "frames ls $run"
    "$bin/caravan" eval "$run" --json | sed 's/"name":"[^"]*"/"name":"eval"/' | cmp - "$work/want.json" || fail "eval $run"
    "$bin/caravan" report "$run" | grep -q '^quarantined  *1$' || fail "report $run"
    [ "$("$bin/caravan" pairs "$run" 2>/dev/null | wc -l)" = 13 ] || fail "pairs $run"
done

# The store of a run may lie elsewhere, beside one that is in the run's directory from an earlier start; the run may have
# been moved, and its model may be gone.
cp -r "$work/a/eval" "$work/moved"
mv "$work/moved/store" "$work/elsewhere"
sed -i "s|$work/a/eval/store|$work/elsewhere|; s|^\( *model: \).*|\1/nowhere|" "$work/moved/pipeline-1.yaml"
"$bin/caravan" groups ls "$work/moved" | cmp - "$work/listed" || fail "groups ls of a run whose store is elsewhere"
"$bin/caravan" frames ls "$work/moved" | cmp - <("$bin/caravan" frames ls "$work/a/eval") || fail "frames ls of a run whose store is elsewhere"
"$bin/caravan" eval "$work/moved" --json | sed 's/"name":"[^"]*"/"name":"eval"/' | cmp - "$work/want.json" || fail "eval of a run whose store is elsewhere"
"$bin/caravan" groups export "$work/moved" e0-000000 >"$work/one" # before there is another store
"$bin/caravan-score" --stdio --store "$work/moved/store" <"$work/one" >"$work/out" 2>"$work/err"
[ "$("$bin/caravan" groups ls "$work/moved" | wc -l)" = $(($(wc -l <"$work/listed") + 1)) ] || fail "groups ls of a run with two stores"

# Whether three answers were given, and the source knows what became of two groups.
in_the_middle() {
    settled=$(sed -n 's/^caravan_groups{.*state="done"} //p' "$work/b/eval/metrics.prom" 2>/dev/null || true)
    [ "$(wc -l <"$work/count")" -ge 3 ] && [ "${settled:-0}" -ge 2 ]
}

# stop SIGNAL: starts it again and sends the run SIGNAL in the middle. Returns when the program is gone as well, so that it
# does not count for the next run.
stop() {
    : >"$work/count"
    touch "$work/hold"
    rm -f "$work/b/eval/metrics.prom"
    start b/eval &
    pid=$!
    wait_until 120 in_the_middle || fail "no three answers: $(cat "$work/err")"
    kill -"$1" "$(pgrep -P $pid -x caravan || echo $pid)"
    wait $pid || true
    while pgrep -f "echo >>$work/count" >/dev/null; do sleep 0.05; done
    rm "$work/hold"
}
stop KILL
stop INT
groups=$("$bin/caravan" groups export --store "$work/b/eval/store" | grep -c '"verdict":') || true
[ "$groups" -ge 2 ] && [ "$groups" -lt 13 ] || fail "not in the middle: $groups"
: >"$work/count"
start b/eval || fail "$(cat "$work/err")"
[ "$(wc -l <"$work/count")" -lt 13 ] || fail "$groups were done, but all were answered again"
"$bin/caravan" eval "$work/b/eval" | cmp - "$work/want" || fail "another table: $("$bin/caravan" eval "$work/b/eval")"
start b/eval || fail "$(cat "$work/err")" # has nothing to do
"$bin/caravan" eval "$work/a/eval" "$work/b/eval" --json --require accuracy=0.28 | sed 's/.*\({"name".*\),{"name".*/\1/' >"$work/both"
grep -qF "$(cat "$work/both")" "$work/want.json" || fail "side by side: $(cat "$work/both")"

# With other settings it goes over all samples again, and computes what they change.
start b/eval --set judge.judge=likelihood || fail "$(cat "$work/err")"
grep -q "source: the settings have changed: " "$work/err" || fail "nobody was told: $(cat "$work/err")"
"$bin/caravan" eval "$work/b/eval" | grep -q "^consistency by likelihood$" || fail "the verdicts are the old ones"
tail -n 1 "$work/b/eval/logs/rollout.log" | grep -q " 13 found in the store" || fail "sampled again: $(tail -n 1 "$work/b/eval/logs/rollout.log")"

# So it does when the model's directory has other weights, or the link to it leads elsewhere; else it has nothing to do.
ln -s "$work/model" "$work/latest"
start c/eval --set model="$work/latest" || fail "$(cat "$work/err")"
"$bin/caravan" init "$work/trained" --shape pipelines/miniature/shape.json --tokenizer "$work/model" --seed 4
ln -sfn "$work/trained" "$work/latest"
for told in 1 0; do
    : >"$work/err"
    : >"$work/count"
    start c/eval --set model="$work/latest" || fail "$(cat "$work/err")"
    [ "$(grep -c "source: the settings have changed: " "$work/err")" = $told ] || fail "another model: $(cat "$work/err")"
    [ "$(wc -l <"$work/count")" = $((13 * told)) ] || fail "another model: $(wc -l <"$work/count") answers"
done
touch -d "1 hour ago" "$work/trained/model.safetensors" # as if it had been written then
: >"$work/err"
start c/eval --set model="$work/latest" || fail "$(cat "$work/err")"
grep -q "source: the settings have changed: " "$work/err" || fail "other weights: $(cat "$work/err")"
tail -n 1 "$work/c/eval/logs/rollout.log" | grep -q " 13 found in the store" || fail "sampled again: $(tail -n 1 "$work/c/eval/logs/rollout.log")"
