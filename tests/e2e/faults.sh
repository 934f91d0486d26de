# Runs of a pipeline without a fault, with replicas, with stages that are killed repeatedly, and with the whole run killed
# and restarted three times. Their final weights are equal to the bit, and each step is trained once.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline ""

run plain || fail "plain: $(cat "$work/plain.err")"
grep -q "done: 8 steps, 16 groups trained, 0 quarantined" "$work/plain.err" || fail "plain: $(cat "$work/plain.err")"
check_steps plain 8
want=$(weights_of plain)

# The run's directory has everything that its documentation lists.
for path in store/frames.lmdb store/groups.lmdb ledger.lmdb logs/optim.log logs/force.log pipeline.yaml checkpoints/latest/config.json; do
    [ -e "$work/plain/$path" ] || fail "the run's directory lacks $path"
done
# Running it again, by a relative path, has nothing to do.
(cd "$work" && run plain --set run=plain) || fail "again: $(cat "$work/plain.err")"
grep -q "done: 8 steps" "$work/plain.err" || fail "again: $(cat "$work/plain.err")"
check_steps plain 8

run twice --set frames.replicas=2 --set rollout.replicas=2 --set refscore.replicas=2 || fail "twice: $(cat "$work/twice.err")"
[ -f "$work/twice/logs/rollout-2.log" ] || fail "no log of the second replica"
[ "$(weights_of twice)" = "$want" ] || fail "the weights differ with two replicas"

# Each stage is killed three times: a group that was lost four times with one stage is quarantined. The run waits for the
# first time.
make_program held "exec sed -u -e '$force' -e '3,999e while [ ! -e $work/go ]; do sleep 0.05; done' -e 'e sleep 0.2'"
begin killed --set force.program="$work/held.sh"
stages=(source frames rollout refscore reward force optim)
wait_for_step killed 1
for turn in $(seq 21); do
    kill -0 $pid 2>/dev/null || break
    kill -9 $(pgrep -P $pid -f "/nodes/${stages[turn * 5 % 7]}( |\$)") 2>/dev/null || true # it may be about to be started
    [ $turn -gt 1 ] || wait_for_line "$work/killed.err" "killed by signal 9"
    touch "$work/go"
    sleep 0.8
done
wait $pid || fail "killed: $(cat "$work/killed.err")"
grep -q "killed by signal 9" "$work/killed.err" || fail "nothing was killed"
check_steps killed 8
[ "$(weights_of killed)" = "$want" ] || fail "the weights differ after killed stages"

for turn in 1 2 3; do
    signal=KILL
    [ $turn = 2 ] && signal=TERM
    got=0
    timeout --foreground -s $signal 1.5 "$bin/caravan" run "$work/p.yaml" --set run="$work/again" 2>>"$work/again.err" || got=$?
    [ $got = 0 ] || [ $got = 137 ] || [ $got = 124 ] || fail "again: exit $got: $(cat "$work/again.err")"
done
run again || fail "again: $(cat "$work/again.err")"
check_steps again 8
[ "$(weights_of again)" = "$want" ] || fail "the weights differ after three stops"

# A user's program that exits after every third group is restarted and gets its group again.
make_program mortal "exec sed -u -e '$force' -e 3q"
run mortal --set force.program="$work/mortal.sh" || fail "mortal: $(cat "$work/mortal.err")"
grep -q "starting it again" "$work/mortal/logs/force.log" || fail "the program did not die: $(cat "$work/mortal.sh")"
[ "$(weights_of mortal)" = "$want" ] || fail "the weights differ after a program that exits"

# A program that answers before it has read the whole line gets lines that are longer than its pipes hold.
make_program pad 'pad=$(head -c 100000 /dev/zero | tr "\0" x)
exec sed -u -e "s/}$/,\"a\":\"$pad\"}/" -e "s/}$/,\"b\":\"$pad\"}/" -e "s/}$/,\"c\":\"$pad\"}/" -e "s/}$/,\"d\":\"$pad\"}/"'
sed 's/^  - optim:/  - pad: {program: .\/pad.sh}\n  - copy: {program: cat}\n&/' "$work/p.yaml" >"$work/long.yaml"
timeout -k 10 120 "$bin/caravan" run "$work/long.yaml" --set run="$work/long" 2>"$work/long.err" || fail "long: $(cat "$work/long.err")"
[ "$(weights_of long)" = "$want" ] || fail "the weights differ after a program that copies long lines"

# With max_staleness 1 every group is trained, and none is more than one step old.
run stale --set source.max_staleness=1 || fail "stale: $(cat "$work/stale.err")"
check_steps stale 8
sed -n 's/.*"age_max": \([0-9]*\),.*/\1/p' "$work/stale/metrics.jsonl" | sort -u >"$work/ages"
grep -qx 1 "$work/ages" || fail "no group was a step behind"
if grep -qvx '[01]' "$work/ages"; then fail "some groups were more than one step old: $(cat "$work/ages")"; fi

# Stopped in the middle, after step 6, then started with an empty directory for optim: that is refused, and the ledger
# stays as it is. Step 6 has groups only after the ledger has step 5.
make_program until-6 "exec sed -u -e '$force' -e '13,999e sleep 600'"
begin moved --set optim.save_every=2 --set force.program="$work/until-6.sh"
wait_for_step moved 6
kill -TERM $pid
ends_with 75 $pid "$work/moved.err"
expect 65 "optim's directory is empty, but the ledger has [5-8] trained steps: " \
    timeout -k 10 120 "$bin/caravan" run "$work/p.yaml" --set run="$work/moved" --set optim.out="$work/elsewhere"
if grep "starting it again" "$work/err"; then fail "a refused run went on"; fi
if grep -q "goes back" "$work/moved/logs/source.log"; then fail "the ledger's history is gone"; fi
[ ! -e "$work/elsewhere/metrics.jsonl" ] || fail "steps were trained again in another directory"

# Optim comes back with an older checkpoint: the person is told, and the steps since are trained again.
rm -rf "$work"/moved/checkpoints/step-00000[5-8] "$work/moved/checkpoints/latest" "$work"/moved/checkpoints/state-*
run moved --set optim.save_every=2 || fail "moved: $(cat "$work/moved.err")"
grep -q "optim goes back from step [5-8] to step [2-4]" "$work/moved.err" || fail "no notice: $(cat "$work/moved.err")"
check_steps moved 8
[ "$(weights_of moved)" = "$want" ] || fail "a run that went back trains other weights"

# A second run in the same directory is refused while the first one runs.
begin busy --set source.epochs=1000
wait_for_step busy 1
expect 64 "another caravan run is using" "$bin/caravan" run "$work/p.yaml" --set run="$work/busy"
kill -TERM $pid
ends_with 75 $pid "$work/busy.err"

# A stage that cannot start ends the run, which prints the stage's exit code.
expect 65 "rollout ended with exit code 65" "$bin/caravan" run "$work/p.yaml" --set run="$work/broken" --set rollout.model="$work/data"
