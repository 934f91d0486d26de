# max_steps of the source: a run over data that hold a sample of an unknown kind and one whose clip is missing ends after
# so many whole steps, and goes on if it is given more.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline ""
{
    sed -n 1p "$work/data/train.jsonl"
    sed -n '2s/"data_type": *"video"/"data_type":"audio"/p' "$work/data/train.jsonl"
    sed -n '2s/"path": *"[^"]*"/"path":"none.mp4"/p' "$work/data/train.jsonl"
    sed -n 2,4p "$work/data/train.jsonl"
} >"$work/data/odd.jsonl"
odd=(--set source.data="$work/data/odd.jsonl" --set source.limit=6 --set source.shuffle=false)
run few "${odd[@]}" --set source.max_steps=2 || fail "few: $(cat "$work/few.err")"
grep -q "done: 2 steps, 4 groups trained, 2 quarantined$" "$work/few.err" || fail "few: $(cat "$work/few.err")"
# Before it stand time and reward, the checkpoint, and how to go on.
checkpoint=$(realpath "$work/few/checkpoints/latest")
tail -n 4 "$work/few.err" >"$work/end"
sed -i 's/took 0:0[0-9]:[0-5][0-9]; last step: reward [0-9.]*, accuracy [0-9.]*$/took T; last step: R/' "$work/end"
diff - "$work/end" <<END || fail "the end of the run"
caravan: this start took T; last step: R
caravan: newest checkpoint: $checkpoint
caravan: next: evaluate it with a file of pipelines/eval and --set model=CHECKPOINT, or train on with --set source.max_steps=4 --set source.epochs=8
caravan: done: 2 steps, 4 groups trained, 2 quarantined
END
# What is quarantined is in the terminal's lines with its sample and line, and in the store.
id=$(sed -n '2s/.*"problem_id": *\([0-9]*\),.*/\1/p' "$work/data/train.jsonl")
grep -q "frames: sample $id, line 3 of odd.jsonl: .*none.mp4: No such file" "$work/few.err" || fail "no sample: $(cat "$work/few.err")"
"$bin/caravan" groups ls --store "$work/few/store" --state quarantined >"$work/out"
[ "$(grep -c "quarantined  *$id .*none.mp4\|quarantined  *$id .*data_type" "$work/out")" = 2 ] || fail "groups ls: $(cat "$work/out")"
[ "$(wc -l <"$work/out")" = 2 ] || fail "groups ls has others: $(cat "$work/out")"
[ "$("$bin/caravan" groups export --store "$work/few/store" | wc -l)" = 6 ] || fail "groups export has not all groups"
"$bin/caravan" report "$work/few" >"$work/out" || fail "report: exit $?"
grep -q '^quarantined  *2$' "$work/out" || fail "report: $(cat "$work/out")"
grep -q 'steps: 2' "$work/few/pipeline.yaml" || fail "optim's steps do not follow max_steps: $(cat "$work/few/pipeline.yaml")"
[ "$(wc -l <"$work/few/metrics.jsonl")" = 2 ] || fail "metrics: $(cat "$work/few/metrics.jsonl")"
# The third step is in the second epoch, which has the two odd samples again.
run few "${odd[@]}" --set source.max_steps=3 || fail "more: $(cat "$work/few.err")"
grep -q "done: 3 steps, 6 groups trained, 4 quarantined$" "$work/few.err" || fail "more: $(cat "$work/few.err")"
# Each epoch has six groups, of which a step of two takes more where some are quarantined.
[ "$(sed -n 's/.*"epoch": \([^,]*\),.*/\1/p' "$work/few/metrics.jsonl" | tr '\n' ' ')" = "0.666666667 1 1.66666667 " ] ||
    fail "epochs: $(cat "$work/few/metrics.jsonl")"
[ "$("$bin/caravan-source" --stdio --data "$work/data/odd.jsonl" --format video-r1 --groups-per-step 2 --max-steps 3 2>/dev/null | wc -l)" = 6 ] ||
    fail "a filter of three steps"
expect 64 "max_steps" "$bin/caravan-source" --stdio --data "$work/data/odd.jsonl" --format video-r1 --max-steps 0

# What the last line but one says makes a run that has used all its data train on, too.
run all --set source.epochs=1 --set source.max_steps=2 || fail "all: $(cat "$work/all.err")"
more=$(sed -n 's/^caravan: next: .* train on with //p' "$work/all.err")
run all --set source.epochs=1 $more || fail "all again: $(cat "$work/all.err")"
grep -q "done: 4 steps, 8 groups trained, 0 quarantined$" "$work/all.err" || fail "all again: $more: $(cat "$work/all.err")"
