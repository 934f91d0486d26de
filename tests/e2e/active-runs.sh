# caravan ls, a run's directory in place of its file, and what other users may see of a run.
. tests/e2e/common.sh
trap 'kill ${pid:-} 2>/dev/null && kill -CONT $pid || true; rm -rf "$work"' EXIT
chmod 755 "$work"
make_questions 3000 # more than a run can do before this script stops it
make_program slow 'exec sed -u "e sleep 0.2"'
cat >"$work/p.yaml" <<'END'
name: questions
run: run
stages:
  - source: {data: data.jsonl, format: caravan, limit: 4}
  - slow: {program: ./slow.sh}
END
# Finished runs are not active, and are named as their directory.
"$bin/caravan" run "$work/p.yaml" --set run="$work/done" 2>"$work/done.err" || fail "$(cat "$work/done.err")"
grep -qx "caravan: next: caravan groups ls $work/done" "$work/done.err" || fail "no next command: $(cat "$work/done.err")"
if "$bin/caravan" ls | grep -F "$work/"; then fail "a finished run is active"; fi
expect 64 "done: this is a directory: give the pipeline file" "$bin/caravan" run "$work/done"
expect 65 "data/pipeline.yaml: there is none: this is not the directory of a run" "$bin/caravan" check "$(mkdir "$work/data" && echo "$work/data")"
"$bin/caravan" graph --text "$work/done" | grep -q "questions, in $work/done" || fail "graph RUN"
# A run that was moved is where it is now.
mv "$work/done" "$work/moved"
"$bin/caravan" check "$work/moved" | grep -q "run in $work/moved" || fail "check RUN: $("$bin/caravan" check "$work/moved")"

# This one is slow to exit after its goodbye.
cat >"$work/linger.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    unsetenv("LD_PRELOAD"); // the stages do not
}
int zmq_ctx_term(void *context) {
    const int result = ((int (*)(void *))dlsym(RTLD_NEXT, "zmq_ctx_term"))(context);
    sleep(4);
    return result;
}
END
"${CC:-cc}" -shared -fPIC -o "$work/linger.so" "$work/linger.c"
LD_PRELOAD="$work/linger.so" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" "$bin/caravan" run "$work/p.yaml" --set source.limit=3000 2>"$work/run.err" &
pid=$!
# shows OPERAND...: top shows what the program has done.
shows() { "$bin/caravan" top "$@" --once 2>"$work/top.err" >"$work/top" && grep -q '^slow  *[0-9]' "$work/top"; }
has_group() { [ -n "$("$bin/caravan" groups ls "$work/run")" ]; }
for _ in $(seq 600); do
    "$bin/caravan" ls >"$work/ls"
    if grep -q "^ *- .* \(starting\|running\) *0:0[0-9]:[0-5][0-9]  *$pid  $work/run$" "$work/ls" && [ -s "$work/run/store/groups.lmdb" ]; then break; fi
    sleep 0.1
done
grep -q " $pid  $work/run$" "$work/ls" || fail "ls: $(cat "$work/ls")"
wait_until 60 shows "$work/run" || fail "top RUN: $(cat "$work/top" "$work/top.err")"
# A supervisor that is paused, as on a busy machine, is waited for: by a top that it has not answered yet, and by one that
# has lost it, after 10 s.
"$bin/caravan" top "$work/run" >"$work/lasting" 2>"$work/lasting.err" &
lasting=$!
wait_until 60 test -s "$work/lasting" || fail "top: $(cat "$work/lasting.err")"
kill -STOP $pid
"$bin/caravan" top "$work/run" --once >"$work/top" 2>"$work/once.err" &
once=$!
slow_to_answer="^caravan: the run's process $pid does not answer yet; waiting for it$"
wait_for_line "$work/once.err" "$slow_to_answer"
wait_for_line "$work/lasting.err" "$slow_to_answer"
kill -CONT $pid
ends_with 0 $once "$work/once.err"
kill -TERM $lasting
ends_with 0 $lasting "$work/lasting.err"
# Whose file has no run is told of this one.
expect 69 "no run of this file was started in $work/none" "$bin/caravan" stop "$work/p.yaml" --set run="$work/none"
grep -q " $pid  $work/run$" "$work/err" || fail "the active run is not named: $(cat "$work/err")"
expect 69 "no run of this file is active in $work/moved" "$bin/caravan" top "$work/moved" --once
grep -q " $pid  $work/run$" "$work/err" || fail "the active run is not named: $(cat "$work/err")"

# other COMMAND...: as another user.
other() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
if [ "$(id -u)" = 0 ] && other "$bin/caravan" --version >/dev/null 2>&1; then
    owner=$(id -un)
    expect 69 "$work/run belongs to user $owner, who alone can watch and stop its run" other "$bin/caravan" top "$work/run"
    expect 69 "$work/run belongs to user $owner, who alone can watch and stop its run" other "$bin/caravan" stop "$work/p.yaml"
    expect 69 "groups.lmdb belongs to user $owner, and a process uses it" other "$bin/caravan" groups ls "$work/run"
    other "$bin/caravan" ls | grep -q " $pid  a run of user $owner$" || fail "ls of another user: $(other "$bin/caravan" ls)"
    [ "$(other "$bin/caravan" groups ls "$work/moved" | wc -l)" = 4 ] || fail "another user cannot read a finished store"
    if unshare -m mount --bind "$work/moved" /mnt 2>/dev/null; then
        unshare -m sh -e -c 'mount --bind "$1" /mnt; mount -o remount,ro,bind /mnt; shift; "$@"' - "$work/moved" \
            setpriv --reuid=65534 --regid=65534 --clear-groups "$bin/caravan" groups ls /mnt >"$work/out" || fail "a read-only mount"
        [ "$(wc -l <"$work/out")" = 4 ] || fail "a read-only mount: $(cat "$work/out")"
    else
        echo "left out: a read-only mount, which takes the right to mount"
    fi
    rm "$work/moved/store/groups.lmdb-lock"
    [ "$(other "$bin/caravan" groups export "$work/moved" | wc -l)" = 4 ] || fail "another user cannot read a store without a lock file"
    chmod 600 "$work/moved/store/groups.lmdb"
    expect 69 "groups.lmdb: Permission denied" other "$bin/caravan" groups ls "$work/moved"
else
    echo "left out: what another user sees, which takes root"
fi

# Data and programs need not be there any more, as on a disk that is no longer mounted, when the program has begun.
wait_until 60 has_group || fail "no group is done: $(cat "$work/run.err")"
mv "$work/data.jsonl" "$work/slow.sh" "$work/moved"
"$bin/caravan" graph --text "$work/p.yaml" | grep -q "questions, in $work/run" || fail "graph without the data"
wait_until 60 shows "$work/p.yaml" --set source.limit=3000 || fail "top without the data: $(cat "$work/top" "$work/top.err")"
# caravan stop waits for the end, here for a process that is slow to end. Ctrl-C ends the wait, not well.
slow=$(pgrep -P $pid -f 'caravan program .*/nodes/slow ')
kill -STOP $slow
# It waits for a supervisor that is paused, too.
stop() {
    "$bin/caravan" stop "$work/run" 2>"$work/$1.err" &
    stop=$!
}
kill -STOP $pid
stop first
wait_for_line "$work/first.err" "$slow_to_answer"
kill -CONT $pid
wait_for_line "$work/first.err" '^caravan: stopping; waiting for the end$'
kill -TERM $stop
ends_with 75 $stop "$work/first.err"
grep -q 'interrupted before the end of the run' "$work/first.err" || fail "stop: $(cat "$work/first.err")"
# Meanwhile it goes on to report.
rm "$work/run/metrics.prom"
wait_until 60 test -s "$work/run/metrics.prom" || fail "a run that stops reports nothing"
stop second
wait_for_line "$work/second.err" '^caravan: stopping; waiting for the end$'
kill -CONT $slow
ends_with 0 $stop "$work/second.err"
# Then the next run can begin.
mv "$work/moved/data.jsonl" "$work/moved/slow.sh" "$work"
rm "$work/run/metrics.prom"
first=$pid
"$bin/caravan" run "$work/p.yaml" --set source.limit=3000 2>"$work/next.err" &
pid=$!
wait_until 60 test -s "$work/run/metrics.prom" || fail "next: $(cat "$work/next.err")"
ends_with 75 $first "$work/run.err"
kill -TERM $pid
ends_with 75 $pid "$work/next.err"

# So can one that is started before: it waits for the lock, which a run has until it has exited.
mkdir "$work/late"
is_caravan() { [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = caravan ]; } # not this shell's child any more, which has the lock
has_opened() { is_caravan && readlink "/proc/$pid/fd"/* 2>/dev/null | grep -x "$work/late/lock" >"$work/out" || ! kill -0 $pid 2>/dev/null; }
for try in 1 2 3 4 5; do
    exec 8>"$work/late/lock"
    flock 8
    "$bin/caravan" run "$work/p.yaml" --set run="$work/late" 2>"$work/late.err" 8>&- &
    pid=$!
    wait_until 60 has_opened || fail "late: no lock: $(cat "$work/late.err")"
    exec 8>&-
    got=0
    wait $pid || got=$?
    [ $got != 0 ] || break
    # It waits for 2 s, within which this shell may be paused.
    [ $try != 5 ] && grep -q 'another caravan run is using this directory' "$work/late.err" || fail "late: exit $got: $(cat "$work/late.err")"
done
