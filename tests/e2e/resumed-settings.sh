# A run that goes on with other settings: each changed key is said once, each start's settings stay, a learning rate that
# rises again is said, and other data or another order of them are refused by name.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/run-helpers.sh"
make_tiny_model
cd "$work"
make_numbers 6
make_program complete "exec sed -u '$complete'"
cat >p.yaml <<END
run: run
model: model
threads: 1
precision: float32
seed: 7
stages:
  - source: {data: data.jsonl, template: none, group_size: 1, groups_per_step: 1, limit: 4}
  - complete: {program: ./complete.sh}
  - optim: {lr: 1.0e-3}
END
# changes RUN: prints what the terminal said about changed keys.
changes() { sed -n 's/^caravan: \(since .*\)/\1/p' "$1.err"; }

run r || fail "r: $(cat r.err)"
[ "$(changes r)" = "" ] || fail "a first start: $(cat r.err)"
[ "$(readlink r/pipeline.yaml)" = pipeline-1.yaml ] || fail "$(ls -l r)"
grep -qE '^# caravan [0-9.]+, commit [^ ]+, started 20[0-9-]+T[0-9:]+Z$' r/pipeline.yaml || fail "no version: $(cat r/pipeline.yaml)"
run r || fail "again: $(cat r.err)"
[ "$(changes r)" = "" ] && [ ! -e r/pipeline-2.yaml ] || fail "the same settings: $(cat r.err)"
run r --set optim.lr=0.001 --set source.data=./data.jsonl || fail "spelled otherwise: $(cat r.err)"
[ "$(changes r)" = "" ] || fail "the same values: $(cat r.err)"
run r --set source.epochs=2 --set optim.lr=1e-2 --set optim.beta2=0.98 --set complete.speed=3 || fail "more: $(cat r.err)"
diff <(changes r | sort) - <<'END' || fail "what has changed: $(cat r.err)"
since step 4: complete.speed not given -> 3
since step 4: optim.beta2 0.999 (the default) -> 0.98
since step 4: optim.lr 0.001 -> 1e-2
since step 4: optim.steps 4 -> 8
since step 4: source.epochs 1 (the default) -> 2
END
grep -q "optim: the learning rate rises from .* in step 4 to 0.005 in the next one: its schedule of 4 steps had ended, and now it has 8$" r.err ||
    fail "the learning rate: $(cat r.err)"
last=$(readlink r/pipeline.yaml)
[ "$last" = pipeline-3.yaml ] || fail "$(ls -l r)"
grep -q "lr: 1.0e-3" r/pipeline-1.yaml && grep -q "lr: 1e-2" r/pipeline.yaml || fail "the settings of each start: $(ls -l r)"
# Said once; a run that was moved has the same settings.
mv r moved
run moved --set source.epochs=2 --set optim.lr=1e-2 --set optim.beta2=0.98 --set complete.speed=3 || fail "moved: $(cat moved.err)"
[ "$(changes moved)" = "" ] || fail "what has not changed: $(cat moved.err)"

# The files of earlier starts may be removed, also that which the link refers to.
rm moved/pipeline-*.yaml
run moved --set source.epochs=2 --set optim.lr=1e-2 --set optim.beta2=0.98 --set complete.speed=3 || fail "removed: $(cat moved.err)"
[ "$(readlink moved/pipeline.yaml)" = pipeline-1.yaml ] && grep -q "lr: 1e-2" moved/pipeline.yaml || fail "$(ls -l moved)"

# The metrics in the run's directory are those of the checkpoints that it has now.
cp -r moved/checkpoints other
run moved --set optim.out="$work/other" --set source.epochs=2 || fail "another out: $(cat moved.err)"
[ "$(readlink moved/metrics.jsonl)" = "$work/other/metrics.jsonl" ] || fail "$(ls -l moved)"

# Without a moving reference it is the first model again.
run e --set optim.ema_every=1 || fail "e: $(cat e.err)"
run e --set optim.ema_every=0 --set source.epochs=2 || fail "without a moving reference: $(cat e.err)"
grep -q "optim: ema_every is 0 now: the reference is the first model again$" e.err || fail "the reference: $(cat e.err)"
# What a state has in another way than these options is not called damaged: it is not to be removed.
for other in optim.ema_every=1 "optim.ema_every=0 --set optim.moment_precision=bfloat16"; do
    expect 64 "step-000008/training.safetensors: tensor .*: it was saved with other options of optim: give ema_every" \
        "$bin/caravan" run p.yaml --set run=e --set source.epochs=3 --set $other
done

# refused PATTERN OPTION...: with other data or another order of them the run is refused, and says what differs.
refused() {
    pattern=$1
    shift
    expect 65 "this run was started with other data or other settings of source: $pattern; use another run directory" \
        "$bin/caravan" run p.yaml --set run=moved --set source.epochs=2 "$@"
}
refused "seed 7 -> 8" --set source.seed=8
refused "limit 4 -> 3" --set source.limit=3
refused "groups_per_step 1 -> 2, shuffle true -> false" --set source.groups_per_step=2 --set source.shuffle=false
sed 's/What is/Which is/' data.jsonl >other.jsonl
refused "data $work/data.jsonl (hash [0-9a-f]\{16\}) -> .*other.jsonl (hash [0-9a-f]\{16\})" --set source.data=other.jsonl

# RUN/pipeline.yaml gives the end of the schedule. What is trained after it has learning rate 0, which is said once; the
# end of a run says with which options more is learned.
run given || fail "given: $(cat given.err)"
grep -q "train on with --set source.epochs=2$" given.err || fail "given: $(cat given.err)"
# again EPOCHS OPTION...: the run goes on, by its own file.
again() {
    local epochs=$1
    shift
    "$bin/caravan" run given/pipeline.yaml --set source.epochs="$epochs" "$@" 2>given.err || fail "again: $(cat given.err)"
}
again 2
[ "$(grep -c "the learning rate is 0 from step 5 on, .* schedule, is 4$" given.err)" = 1 ] || fail "no schedule: $(cat given.err)"
grep -q "train on with --set source.epochs=3 --set optim.steps=12$" given.err || fail "no steps: $(cat given.err)"
again 3 --set optim.steps=12
if grep "learning rate is 0" given.err; then fail "a longer schedule is over"; fi
[ "$(grep -c '"lr": 0,' given/metrics.jsonl)" = 4 ] || fail "learning rates: $(cat given/metrics.jsonl)"

# Another run with that file leaves the first one alone. One that was moved goes on where it is said to be, and nowhere else.
before=$(ls given/checkpoints | cksum && cksum given/metrics.jsonl given/store/groups.lmdb)
"$bin/caravan" run given/pipeline.yaml --set run=apart 2>apart.err || fail "apart: $(cat apart.err)"
grep -q "new training from" apart.err && [ -d apart/checkpoints/step-000012 ] && [ -e apart/store/groups.lmdb ] || fail "apart: $(cat apart.err)"
[ "$before" = "$(ls given/checkpoints | cksum && cksum given/metrics.jsonl given/store/groups.lmdb)" ] || fail "another run has changed it"
mv given gone
expect 64 "gone/pipeline.yaml: its run was in $work/given and is now in $work/gone: say so with --set run=$work/gone" "$bin/caravan" run gone/pipeline.yaml
"$bin/caravan" run gone/pipeline.yaml --set run=gone --set source.epochs=4 --set optim.steps=16 2>gone.err || fail "gone: $(cat gone.err)"
grep -q "resumes at step 12 from $work/gone/" gone.err && [ ! -e given ] || fail "gone: $(cat gone.err)"
