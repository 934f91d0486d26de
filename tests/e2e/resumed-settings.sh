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
