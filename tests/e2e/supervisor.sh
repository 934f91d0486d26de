# How `caravan run` looks after its processes: signals that are ignored, descriptors, the lines of the logs, its own
# failures, and what a user's program has started.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline ""

# wait_for NAME FILE: until the file is there and not empty.
wait_for() {
    wait_until 120 test -s "$2" || fail "$1: $2 does not come: $(cat "$work/$1.err")"
}

# look OPTION...: $work/top is what caravan top shows of a run.
look() { "$bin/caravan" top "$work/p.yaml" "$@" --once >"$work/top" 2>"$work/err"; }

# watch NAME OPTION...: starts a caravan top that goes on, and waits until it has shown something in $work/NAME; $watcher is its
# process.
watch() {
    local shown=$work/$1
    shift
    "$bin/caravan" top "$work/p.yaml" "$@" >"$shown" 2>"$shown.err" &
    watcher=$!
    wait_until 120 test -s "$shown" || fail "top: $(cat "$shown.err")"
}

# A run that stands still says which group it waits for, and who was given it. This takes half a minute, in which the
# other runs go on.
still="--set run=$work/still --set source.epochs=4000"
begin still $still
still_pid=$pid
wait_for still "$work/still/metrics.jsonl"
stopped=$(pgrep -P $still_pid -f caravan-refscore)
# Where it is stopped while it writes to the store, which has one writer at a time, the others wait in their own write.
for _ in $(seq 60); do
    kill -STOP "$stopped"
    sleep 2
    wait_until 60 look $still || fail "top: $(cat "$work/err")"
    if [ "$(grep -c '^\(rollout\|reward\) .* waits for groups$' "$work/top")" = 2 ]; then break; fi
    kill -CONT "$stopped"
    sleep 0.2
done

# A caravan top that is stopped, as by Ctrl-Z, until its supervisor has given it up goes on later.
watch paused $still
paused=$watcher
kill -STOP $paused

# Under nohup the end of the terminal does not end the run.
make_held 5
(
    trap '' HUP
    exec "$bin/caravan" run "$work/p.yaml" --set run="$work/nohup" --set force.program="$work/held.sh" 2>"$work/nohup.err"
) &
pid=$!
wait_for nohup "$work/nohup/metrics.jsonl"
kill -HUP $pid
touch "$work/go"
wait $pid || fail "nohup: $(cat "$work/nohup.err")"
grep -q "done: 8 steps" "$work/nohup.err" || fail "a SIGHUP that is ignored stopped the run: $(cat "$work/nohup.err")"

# Without nohup it stops the run; the tests themselves may be under nohup. caravan top shows the run and its last steps; a
# second one, which hangs, costs the run nothing.
hup="--set run=$work/hup --set source.epochs=400 --set force.program=$work/slow.sh"
env --default-signal=HUP "$bin/caravan" run "$work/p.yaml" $hup 2>"$work/hup.err" &
pid=$!
wait_for hup "$work/hup/metrics.jsonl"
watch hung $hup
hung=$watcher
wait_until 60 look $hup || fail "top: $(cat "$work/err")"
grep -q '^step  reward   std   acc right wrong bonus  cons length trunc  entr    kl    loss$' "$work/top" || fail "top: $(cat "$work/top")"
grep -q '^[1-9][0-9]*\( *[0-9.]*[0-9]\)\{6\} *- *[1-8]\.[0-9] *[01]\.[0-9]' "$work/top" || fail "top: $(cat "$work/top")"
kill -STOP $hung
kill -HUP $pid
ends_with 75 $pid "$work/hup.err"
kill -KILL $hung; wait $hung 2>/dev/null || true
grep -q "stopping" "$work/hup.err" || fail "a SIGHUP did not stop the run: $(cat "$work/hup.err")"

# Descriptors: the soft limit is raised, a hard limit that is too low is refused before anything is started.
(ulimit -Sn 24 && run soft) || fail "a low soft limit: $(cat "$work/soft.err")"
grep -q "done: 8 steps" "$work/soft.err" || fail "a low soft limit: $(cat "$work/soft.err")"
(
    ulimit -n 40
    expect 69 "may need [0-9]* file descriptors, but only 40 are allowed" "$bin/caravan" run "$work/p.yaml" --set run="$work/hard"
    [ "$(wc -l <"$work/err")" = 1 ] || fail "not one line: $(cat "$work/err")"
) || exit 1
[ ! -e "$work/hard" ] || fail "a run without descriptors was begun"

# Every line of a stage's log has the time and says which process wrote it; the terminal's lines are as they were.
run lines --set rollout.replicas=2 || fail "lines: $(cat "$work/lines.err")"
time='^20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\.[0-9][0-9][0-9]Z'
for log in caravan-frames caravan-rollout caravan-rollout-2 caravan-optim force; do
    file=$work/lines/logs/${log#caravan-}.log
    [ -s "$file" ] || fail "$file is empty"
    if grep -v "$time $log: " "$file"; then fail "a line of $file does not begin with the time and $log"; fi
done
metrics='groups{run="faults",state="trained"} 16
groups{run="faults",state="in_flight"} 0
trained_steps{run="faults"} 8
replica_up{run="faults",stage="optim",replica="1"} 0
replica_restarts_total{run="faults",stage="optim",replica="1"} 0
replica_worked_groups_total{run="faults",stage="reward",replica="1"} 16
replica_worked_groups_total{run="faults",stage="optim",replica="1"} 16'
while read -r line; do
    grep -qxF "caravan_$line" "$work/lines/metrics.prom" || fail "no $line in $(cat "$work/lines/metrics.prom")"
done <<<"$metrics"
if grep -v '^caravan: ' "$work/lines.err"; then fail "a line on the terminal does not begin with caravan:"; fi
expect 65 '^caravan: rollout ended with exit code 65: caravan-rollout: ' "$bin/caravan" run "$work/p.yaml" --set run="$work/quoted" --set rollout.model="$work/data"

# What a user's program has started ends with the run. The number marks this test's own process.
number=$((100000 + $$))
make_program parent "sleep $number >/dev/null 2>&1 & exec sed -u '$force'"
run parent --set force.program="$work/parent.sh" || fail "parent: $(cat "$work/parent.err")"
is_gone() { ! pgrep -f "^sleep $number" >"$work/left"; }
if ! wait_until 60 is_gone; then # it was killed, but may not have ended yet
    pkill -f "^sleep $number"
    fail "a process that a user's program had started goes on after the run"
fi

# failing NAME COMMAND...: starts a long run in $work/NAME with the command before it, in the background; waits for a step.
failing() {
    name=$1
    shift
    "$@" "$bin/caravan" run "$work/p.yaml" --set run="$work/$name" --set source.epochs=4000 2>"$work/$name.err" &
    pid=$!
    wait_for "$name" "$work/$name/metrics.jsonl"
}

# When the supervisor itself fails, optim still saves what it has trained, as a checkpoint or as a state. Here its
# sockets fail.
cat >"$work/fail.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static const char *file;
__attribute__((constructor)) static void begin(void) {
    file = getenv("FAIL_FILE");
    unsetenv("LD_PRELOAD"); // the stages go on
}
int zmq_poll(void *items, int count, long timeout) {
    if (access(file, F_OK) == 0) return errno = ENETDOWN, -1;
    return ((int (*)(void *, int, long))dlsym(RTLD_NEXT, "zmq_poll"))(items, count, timeout);
}
END
"${CC:-cc}" -shared -fPIC -o "$work/fail.so" "$work/fail.c"
failing wire env LD_PRELOAD="$work/fail.so" FAIL_FILE="$work/now" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0"
hit_reward() { kill -USR1 $(pgrep -P $pid -f caravan-reward) 2>/dev/null; }
# Before that, a stage that fails more than 5 times is started again, because the run makes progress.
hits() { grep -cE "reward (was killed by signal 10|failed in the same way) .*; starting it again" "$work/wire.err"; }
is_hit() { [ "$(hits)" -ge "$1" ]; }
for turn in $(seq 6); do
    wait_until 60 hit_reward || true # it may not be started again yet
    wait_until 60 is_hit "$turn" || fail "wire: not hit $turn times: $(cat "$work/wire.err")"
    steps=$(wc -l <"$work/wire/metrics.jsonl")
    wait_until 60 has_lines "$work/wire/metrics.jsonl" $((steps + 3)) || true
done
[ "$(hits)" = 6 ] || fail "wire: $(cat "$work/wire.err")"
# What may be behind a signal of the memory is said.
if ! grep -q '__[at]san_init' "$bin/caravan"; then # a sanitizer catches the signal
    kill -BUS "$(pgrep -P $pid -f caravan-frames)"
    wait_for_line "$work/wire.err" "^caravan: frames was killed by signal 7 (Bus error) (see .*/frames.log): if its store is damaged, remove $work/wire/store,"
fi
touch "$work/now"
got=0
wait $pid || got=$?
[ $got = 69 ] || fail "wire: exit $got: $(cat "$work/wire.err")"
grep -q "waiting: Network is down" "$work/wire.err" || fail "wire: $(cat "$work/wire.err")"
trained=$(tail -1 "$work/wire/metrics.jsonl" | sed 's/.*"step": \([0-9]*\),.*/\1/')
saved=$(printf '%06d' "$trained")
[ -e "$work/wire/checkpoints/step-$saved" ] || [ -e "$work/wire/checkpoints/state-$saved" ] ||
    fail "trained $trained steps, but saved only $(ls "$work/wire/checkpoints")"

# What the terminal was told about the run stands in events.jsonl, an object a line.
events() { sed -n "s/.*, \"kind\": \"$2\", .*\"text\": \"\(.*\)\"}$/\1/p" "$work/$1/events.jsonl"; }
if grep -v '^{"time": [1-9][0-9]*\.[0-9]*, "kind": "[a-z]*", "name": "[a-z0-9-]*", "text": ".*"}$' "$work/wire/events.jsonl"; then fail "not an event"; fi
[ "$(events lines started)" = "started with pipeline-1.yaml" ] || fail "events: $(cat "$work/lines/events.jsonl")"
[ "$(events lines done)" = "done: 8 steps, 16 groups trained, 0 quarantined" ] || fail "events: $(cat "$work/lines/events.jsonl")"
diff <(events wire restarted) <(sed -n 's/^caravan: //; /; starting it again$/p' "$work/wire.err") || fail "restarts"
[ "$(events wire failed)" = "$(sed -n 's/^caravan: //; /waiting: Network is down/p' "$work/wire.err")" ] || fail "events: $(cat "$work/wire/events.jsonl")"
[ "$(events hup stopped)" = "stopping; the same command resumes the run (Ctrl-C again: stop at once)" ] || fail "events: $(cat "$work/hup/events.jsonl")"
# While it cannot be written, the run goes on, and says so once.
mkdir -p "$work/full/events.jsonl"
run full || fail "full: $(cat "$work/full.err")"
[ "$(grep -c "events.jsonl: cannot write: Is a directory" "$work/full.err")" = 2 ] || fail "full: $(cat "$work/full.err")" # at last, too

wait_for_line "$work/still.err" '^caravan: nothing has been done for 0:[3-5][0-9]: rollout \(has\|gave\) group [0-9]*.*refscore.* is silent$'
shows_still() { look $still && grep -q '^nothing has been done for .* refscore.* is silent$' "$work/top"; }
wait_until 60 shows_still || fail "top: $(cat "$work/top" "$work/err")" # it may not have heard of all processes
# What it heard before it was given up has no more groups than the run that stands still, as the run itself has written them:
# the other top may have heard less by then.
groups_of() { sed -n 's|.* \([0-9][0-9]*\) of [0-9]* groups.*|\1|p' "$1" | tail -n 1; }
groups=$("$bin/caravan" ls | sed -n "s|^ *[^ ]* *\([0-9][0-9]*\) of [0-9].* $work/still\$|\1|p")
[ -n "$groups" ] || fail "ls does not show the run that stands still: $("$bin/caravan" ls)"
goes_on() { [ "$(groups_of "$work/paused")" -gt "$groups" ]; }
kill -CONT "$stopped" $paused
wait_until 60 goes_on || fail "top does not go on: $(cat "$work/paused.err")"
# It is told when the run is stopped, before its end: a goodbye at the end is lost where it takes over half a second.
kill $still_pid
ends_with 75 $still_pid "$work/still.err"
code=0
wait $paused || code=$?
case $code in
0) tail -n 1 "$work/paused" | grep -q '^stopped by a signal$' || fail "top does not say how the run ended: $(cat "$work/paused")" ;;
69) grep -q "lost the run in" "$work/paused.err" || fail "top: $(cat "$work/paused.err")" ;; # it got nothing for seconds
*) fail "top ended with $code: $(cat "$work/paused.err")" ;;
esac

# A run's directory that is moved while it runs: the run ends with a line, makes nothing where it was, and goes on where it
# is, to the same weights. One that is removed ends the run as well.
want=$(weights_of lines)
rm "$work/go"
for how in mv rm; do
    begin gone --set force.program="$work/held.sh"
    wait_for_step gone 3
    if [ $how = mv ]; then mv "$work/gone" "$work/elsewhere"; else mv "$work/gone" "$work/gone-2" && rm -r "$work/gone-2"; fi
    ends_with 69 $pid "$work/gone.err"
    [ "$(grep -cxF "caravan: $work/gone is gone: it was moved or removed. The run stops; it goes on with \`run:\` set to where it is" "$work/gone.err")" = 1 ] ||
        fail "$how: $(cat "$work/gone.err")"
    [ ! -e "$work/gone" ] || fail "$how: a new directory was begun: $(find "$work/gone")"
done
# So does one whose files are removed, since the next one may begin in the directory at once.
begin gone --set force.program="$work/held.sh"
wait_for_step gone 3
rm -rf "$work/gone/lock" "$work"/gone/* || true # the lock first: then no event follows. A process may be making another file.
ends_with 69 $pid "$work/gone.err"
grep -qxF "caravan: the files in $work/gone were removed. The run stops" "$work/gone.err" || fail "emptied: $(cat "$work/gone.err")"
[ ! -e "$work/gone/events.jsonl" ] && [ ! -e "$work/gone/metrics.prom" ] || fail "emptied: $(ls "$work/gone")"
run elsewhere || fail "elsewhere: $(cat "$work/elsewhere.err")"
check_steps elsewhere 8
[ "$(weights_of elsewhere)" = "$want" ] || fail "a run whose directory was moved trains other weights"

# A process that cannot be started, here because the user has too many, is started later. This does not hold for root.
as_user=
if [ "$(id -u)" = 0 ]; then
    as_user="setpriv --reuid 61234 --clear-groups"
    chmod 755 "$work"
    mkdir "$work/fork"
    chown 61234 "$work/fork"
fi
if ! $as_user test -x "$bin/caravan" || ! $as_user test -r "$work/p.yaml"; then
    echo "supervisor: a process that cannot be started was not tried: another user cannot read $bin"
    exit 0
fi
failing fork $as_user
limit=$($as_user prlimit --pid $pid --nproc --output SOFT --noheadings | tr -d ' ')
$as_user prlimit --pid $pid --nproc=1:
# A stage without a log goes on, too, and the directory of the logs is made again.
rm -r "$work/fork/logs"
kill -9 $(pgrep -P $pid -f caravan-reward)
wait_for_line "$work/fork.err" "reward cannot be started: Resource temporarily unavailable; trying again in 5 s"
$as_user prlimit --pid $pid --nproc="$limit":
before=$(wc -l <"$work/fork/metrics.jsonl")
wait_until 120 has_lines "$work/fork/metrics.jsonl" $((before + 3)) || fail "fork: the run does not go on: $(cat "$work/fork.err")"
[ -e "$work/fork/logs/reward.log" ] || fail "fork: no log after its directory was removed"
# caravan stop stops it and waits for its end; then there is no run to stop.
stops() { "$bin/caravan" stop "$work/p.yaml" --set run="$work/fork" 2>"$work/err"; }
stops || fail "stop: $(cat "$work/err")"
grep -q "the run has stopped" "$work/err" || fail "stop: $(cat "$work/err")"
ends_with 75 $pid "$work/fork.err"
grep -q 'stopped by `caravan stop`; the same command resumes the run' "$work/fork.err" || fail "fork: $(cat "$work/fork.err")"
expect 69 "no run of this file was started in" "$bin/caravan" stop "$work/p.yaml" --set run="$work/nothing"
expect 69 "no run of this file is active in" "$bin/caravan" stop "$work/p.yaml" --set run="$work/fork"
