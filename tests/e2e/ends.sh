# The end of a run on two machines: one that a person stops, one that gives up waiting, caravan stop, and an end that comes
# while the network is cut. No model takes part.
. tests/e2e/common.sh
make_questions 12
make_program slow "while read -r line; do echo >>$work/touched; until [ -e $work/go ]; do sleep 0.05; done; sleep 0.2; printf '%s\n' \"\$line\"; done"

two_machines 10.78.0 true
port=$((10000 + $$ % 30 * 640))
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

# start OPTION...: both machines in the background; returns when the program `slow` has a group.
touch "$work/go"
start() {
    rm -f "$work/touched"
    $in_one "$bin/caravan" run "$work/p.yaml" --machine one --key "$work/one.key" --set run="$work/one" "$@" 2>"$work/one.err" &
    first=$!
    $in_two "$bin/caravan" run "$work/p.yaml" --machine two --key "$work/two.key" --set run="$work/two" "$@" 2>"$work/two.err" &
    second=$!
    wait_until 60 test -s "$work/touched" || fail "the run does not start: $(cat "$work/one.err" "$work/two.err")"
}
# said MACHINE PATTERN: the machine's terminal must have such a line.
said() {
    grep -q -e "$2" "$work/$1.err" || fail "no line like '$2' in: $(cat "$work/$1.err")"
}

# A person stops one machine: the other one says so, waits, and gives up.
start --set give_up_after=0.05
kill -TERM $second
ends_with 75 $second "$work/two.err"
ends_with 69 $first "$work/one.err"
said one "two: stopped by a signal; the other machines wait for it"
said one "two \(has stopped\|is disconnected\); waiting for it" # its goodbye is lost where it takes over half a second
said one "two has been away for 0.05 minutes (give_up_after): this machine gives up"

# caravan stop, typed on one machine, stops both.
start
$in_two "$bin/caravan" stop "$work/p.yaml" --machine two --key "$work/two.key" --set run="$work/two" 2>"$work/err" ||
    fail "stop: $(cat "$work/err")"
ends_with 75 $first "$work/one.err"
ends_with 75 $second "$work/two.err"
grep -q "stopping one; waiting for the end" "$work/err" || fail "stop: $(cat "$work/err")"
grep -q "the run has stopped" "$work/err" || fail "stop: $(cat "$work/err")"
for machine in one two; do said $machine 'stopped by `caravan stop` on two; the same command resumes the run'; done

# Going on, the run ends while the network is cut: the source tells its supervisor then, which is stopped before.
start
truncate -s 65M "$work/two/logs/slow.log" # too large a log: it is moved
kill -STOP $first
all_groups() { [ "$("$bin/caravan" groups ls --store "$work/one/store-one" | wc -l)" = 12 ]; }
wait_until 60 all_groups || true
sleep 1
[ -z "$in_one" ] || ip -n $space-1 link set $$-1 down
kill -CONT $first
if [ -n "$in_one" ]; then
    sleep 12
    ip -n $space-1 link set $$-1 up
fi
wait $first || fail "one: exit $?: $(cat "$work/one.err")"
wait $second || fail "two: exit $?: $(cat "$work/two.err")"
[ -z "$in_one" ] || said one "12 groups done, 0 quarantined; two does not know it yet: waiting for it"
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
    wait_until 60 replica_works "$@" || fail "$3-2 does not start: $(cat "$work/$2.err")"
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
start --set source.limit=4 --set source.epochs=4
wait $first || fail "one: exit $?: $(cat "$work/one.err")"
wait $second || fail "two: exit $?: $(cat "$work/two.err")"
said one "done: 16 groups done, 0 quarantined"
