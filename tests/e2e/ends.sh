# The end of a run on two machines: one that a person stops, one that gives up waiting, caravan stop, and an end that comes
# while the network is cut. No model takes part.
. tests/e2e/common.sh
make_questions 12
make_program slow "while read -r line; do echo >>$work/touched; until [ -e $work/go ]; do sleep 0.05; done; sleep 0.2; printf '%s\n' \"\$line\"; done"

two_machines 10.78.0 true
take_ports
key_one=$("$bin/caravan" keygen "$work/one.key")
key_two=$("$bin/caravan" keygen "$work/two.key")
cat >"$work/p.yaml" <<END
run: run
stages:
  - source: {data: data.jsonl, template: none, group_size: 2}
  - slow: {program: ./slow.sh, on: two}
  - last: {program: cat}
machines:
  one: {address: $one, port: $port, key: "$key_one"}
  two: {address: $two, port: $((port + 320)), key: "$key_two"}
END

# start OPTION...: both machines in the background; returns when the program `slow` has a group, which it keeps while there
# is no $work/go.
start() {
    rm -f "$work/touched"
    $in_one "$bin/caravan" run "$work/p.yaml" --machine one --key "$work/one.key" --set run="$work/one" "$@" 2>"$work/one.err" &
    first=$!
    $in_two "$bin/caravan" run "$work/p.yaml" --machine two --key "$work/two.key" --set run="$work/two" "$@" 2>"$work/two.err" &
    second=$!
    wait_until 120 test -s "$work/touched" || fail "the run does not start: $(cat "$work/one.err" "$work/two.err")"
}
# said MACHINE PATTERN: the machine's terminal must have such a line.
said() {
    grep -q -e "$2" "$work/$1.err" || fail "no line like '$2' in: $(cat "$work/$1.err")"
}

# hold PID NODE: stops a process of the machine by a signal, so that the machine does not end meanwhile; sets $held.
hold() {
    is_there() { held=$(pgrep -P $1 -f "nodes/$2"); }
    wait_until 60 is_there "$@" || fail "there is no process $2"
    kill -STOP $held
}

# A person stops one machine: the other one says so, waits, and gives up. It must not do so before both have started.
start --set give_up_after=0.5
hold $second slow
kill -TERM $second
wait_for_line "$work/one.err" "two: stopped by a signal; the other machines wait for it" # said once, and lost half a second after its end
kill -CONT $held
ends_with 75 $second "$work/two.err"
ends_with 69 $first "$work/one.err"
said one "two \(has stopped\|is disconnected\); waiting for it" # its goodbye is lost where it takes over half a second
said one "two has been away for 0.5 minutes (give_up_after): this machine gives up"

# caravan stop, typed on one machine, stops both.
start
hold $first last
last=$held
hold $second slow
$in_two "$bin/caravan" stop "$work/p.yaml" --machine two --key "$work/two.key" --set run="$work/two" 2>"$work/err" &
stop=$!
wait_for_line "$work/err" "stopping one; waiting for the end" # where two is reached first, it may end one before
kill -CONT $last $held
wait $stop || fail "stop: $(cat "$work/err")"
ends_with 75 $first "$work/one.err"
ends_with 75 $second "$work/two.err"
grep -q "the run has stopped" "$work/err" || fail "stop: $(cat "$work/err")"
for machine in one two; do said $machine 'stopped by `caravan stop` on two; the same command resumes the run'; done

# Going on, the run ends while the network is cut: the source tells its supervisor then, which is stopped before.
start
truncate -s 65M "$work/two/logs/slow.log" # too large a log: it is moved
kill -STOP $first
touch "$work/go"
all_groups() { [ "$("$bin/caravan" groups ls --store "$work/one/store-one" | wc -l)" = 12 ]; }
wait_until 120 all_groups || fail "no end: $(cat "$work/one.err" "$work/two.err")"
sleep 1
[ -z "$in_one" ] || ip -n $space-1 link set $$-1 down
kill -CONT $first
if [ -n "$in_one" ]; then
    sleep 12
    wait_for_line "$work/one.err" "12 groups done, 0 quarantined; two does not know it yet: waiting for it"
    ip -n $space-1 link set $$-1 up
fi
wait $first || fail "one: exit $?: $(cat "$work/one.err")"
wait $second || fail "two: exit $?: $(cat "$work/two.err")"
for machine in one two; do said $machine "done: 12 groups done, 0 quarantined"; done
if [ -n "$in_one" ]; then
    [ "$(stat -c %s "$work/two/logs/slow.log.1")" -ge 65000000 ] && [ "$(stat -c %s "$work/two/logs/slow.log")" -lt 65000000 ] ||
        fail "the log was not moved: $(ls -l "$work/two/logs")"
fi

# The run has ended, and a machine is killed while one of its processes is slow to end, when the other machine has ended
# already: started again, it does not wait for that one. With more epochs it goes on.
rm -rf "$work/one" "$work/two"
# finish EPOCHS MACHINE STAGE: a run in which the second replica of the machine's stage is stopped by a signal, and the
# machine killed at the end. It is stopped before a group has come through `slow`: a replica of `last` that has one may
# hold the lock of the store, for which the other one would wait for ever.
finish() {
    local killed ended other space=$in_one
    options="--set source.limit=4 --set source.epochs=$1 --set $3.replicas=2"
    rm "$work/go"
    start $options
    if [ $2 = one ]; then killed=$first ended=$second other=two; else killed=$second ended=$first other=one space=$in_two; fi
    replica_works() {
        $space "$bin/caravan" top "$work/p.yaml" --machine $2 --key "$work/$2.key" --set run="$work/$2" $options --once 2>&1 |
            grep -q "^$3-2 .* \(working\|waits for groups\)"
    }
    wait_until 120 replica_works "$@" || fail "$3-2 does not start: $(cat "$work/$2.err")"
    kill -STOP "$(pgrep -P $killed -f "nodes/$3-2")"
    touch "$work/go"
    wait $ended || fail "$other: exit $?: $(cat "$work/$other.err")"
    said $other "done: $((4 * $1)) groups done, 0 quarantined"
    kill -KILL $killed
    wait $killed 2>/dev/null || true
    [ -e "$work/$2/ended-$2" ] || fail "$2 has no note of the end: $(ls "$work/$2")"
}
# replay EPOCHS MACHINE: starts it again, alone.
replay() {
    local space=$in_one
    [ $2 = one ] || space=$in_two
    timeout 120 $space "$bin/caravan" run "$work/p.yaml" --machine $2 --key "$work/$2.key" --set run="$work/$2" $options \
        2>"$work/$2.err" || fail "$2 does not end: exit $?: $(cat "$work/$2.err")"
    said $2 "the run had ended when this machine was killed; the other ones are told"
    said $2 "done: $((4 * $1)) groups done, 0 quarantined"
    [ ! -e "$work/$2/ended-$2" ] || fail "the note of the end stays"
}
finish 1 one last
replay 1 one
finish 2 two slow
replay 2 two
finish 3 one last
# Ctrl-C ends the wait, which takes ten seconds, and does not speak of a run that can be resumed. A busy machine may need
# as long: then it is tried again.
cp "$work/one/ended-one" "$work/note"
for turn in $(seq 10); do
    begun=$SECONDS
    $in_one "$bin/caravan" run "$work/p.yaml" --machine one --key "$work/one.key" --set run="$work/one" $options 2>"$work/one.err" &
    first=$!
    wait_for_line "$work/one.err" "the run had ended when this machine was killed"
    kill -TERM $first || true
    ends_with 0 $first "$work/one.err"
    if grep 'resumes the run' "$work/one.err"; then fail "one: the run had ended"; fi
    took=$((SECONDS - begun))
    cp "$work/note" "$work/one/ended-one"
    [ $took -ge 9 ] || break
done
[ $took -lt 9 ] || fail "Ctrl-C does not end the wait: $(cat "$work/one.err")"
start --set source.limit=4 --set source.epochs=4
wait $first || fail "one: exit $?: $(cat "$work/one.err")"
wait $second || fail "two: exit $?: $(cat "$work/two.err")"
said one "done: 16 groups done, 0 quarantined"
