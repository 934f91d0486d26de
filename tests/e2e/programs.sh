# User's programs that fail: one group that crashes or hangs them does not end the run, a program that is of no use does.
# What they drop of a group comes back, and nothing that they have started outlives them.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
for name in a b poison c hang d; do
    printf '{"id":"%s","prompt":{"messages":[{"role":"user","content":"%s?"}],"problem_type":"OCR","solution":"<answer>x</answer>"}}\n' $name $name
done >"$work/data.jsonl"
cat >"$work/p.yaml" <<'END'
run: run
stages:
  - source: {data: data.jsonl, template: none, shuffle: false, group_size: 2, groups_per_step: 2}
  - mine: {program: ./mine.sh, timeout: 10}
  - last: {program: cat}
END
# The number marks this test's own processes.
number=$((200000 + $$))
# program LINES: writes a program that has the group in $line.
program() {
    make_program mine "while read -r line; do
$1
printf '%s\n' \"\$line\"
done"
}

# The program drops the names of the samples, crashes with one group and hangs with another, with a child of its own.
program "line=\$(echo \"\$line\" | sed 's/\"sample_id\":\"[^\"]*\",//')
case \$line in
*poison?*) echo 'this is poison' >&2; exit 3 ;;
*hang?*) sleep $number & wait ;;
esac"
run poison || fail "poison: $(cat "$work/poison.err")"
grep -q "done: 4 groups done, 2 quarantined" "$work/poison.err" || fail "poison: $(cat "$work/poison.err")"
"$bin/caravan" groups export --store "$work/poison/store" >"$work/groups"
[ "$(grep -c '"sample_id":"' "$work/groups")" = 6 ] || fail "dropped fields: $(cat "$work/groups")"
grep -q '"quarantine":{"stage":"mine","reason":"[^ ]*/mine.sh failed 4 times with group [^ ]*: it ended with exit code 3: this is poison"}' "$work/groups" ||
    fail "no clear reason: $(cat "$work/groups")"
grep -q '/mine.sh failed 4 times with group [^ ]*: it did not answer within 10 s"}' "$work/groups" || fail "no timeout: $(cat "$work/groups")"
for group in e0-000002 e0-000004; do # on a busy machine another group may need more than one try
    [ "$(grep -c "mine.sh failed with group $group" "$work/poison/logs/mine.log")" = 4 ] || fail "tries: $(cat "$work/poison/logs/mine.log")"
done
none_sleeps() { ! pgrep -f "^sleep $number" >/dev/null; }
wait_until 60 none_sleeps || fail "a child of a program that was killed goes on"

# A program that fails before it reads anything, or with everything, ends the run with its last words.
printf '#!/bin/sh\necho "no module named scorer" >&2\nexit 1\n' >"$work/mine.sh"
expect 65 'mine ended with exit code 65: mine: group [^ ]*: .*/mine.sh cannot be used: it ended with exit code 1: no module named scorer' \
    timeout -k 10 120 "$bin/caravan" run "$work/p.yaml" --set run="$work/useless"
[ "$(grep -c "cannot be used" "$work/useless/logs/mine.log")" = 1 ] || fail "a program of no use was tried again"
program 'echo "{\"id\":\"other\"}"; continue'
expect 65 'mine.sh failed with 3 groups in a row, each 4 times: it gave a wrong answer: not a group: prompt: missing' \
    timeout -k 10 120 "$bin/caravan" run "$work/p.yaml" --set run="$work/wrong"
program 'echo "sample 7 has 3 options"'
expect 65 "it gave a wrong answer: 'sample 7 has 3 options' is not a group: .* print to standard error" \
    timeout -k 10 120 "$bin/caravan" run "$work/p.yaml" --set run="$work/printed"

# A run of which most samples fail does not succeed. The name of a sample is cut in its event, which stays UTF-8.
program "exit 3"
sed 's/"id":"a"/"id":"a'"$(printf 'é%.0s' {1..150})"'"/; 1q' "$work/data.jsonl" >"$work/one.jsonl"
expect 65 "^caravan: 0 groups done, 1 quarantined: more than half of the samples failed" \
    timeout -k 10 120 "$bin/caravan" run "$work/p.yaml" --set run="$work/all" --set source.data="$work/one.jsonl"
grep -q '"kind": "quarantined", .*sample aéé' "$work/all/events.jsonl" && iconv -f UTF-8 -t UTF-8 "$work/all/events.jsonl" >/dev/null ||
    fail "events: $(cat "$work/all/events.jsonl")"

program ""
expect 65 "(without its ledger.lmdb the same command tries them again; see $work/all/logs/source.log)" \
    timeout -k 10 120 "$bin/caravan" run "$work/p.yaml" --set run="$work/all" --set source.data="$work/one.jsonl"
rm "$work/all/ledger.lmdb"
run all --set source.data="$work/one.jsonl" || fail "all: $(cat "$work/all.err")"
grep -q "done: 1 groups done, 0 quarantined" "$work/all.err" || fail "all: $(cat "$work/all.err")"

# A run none of whose steps is full trains nothing, and does not succeed either.
make_data 1
make_model
cat >"$work/short.yaml" <<'END'
run: run
model: model
threads: 1
precision: float32
stages:
  - source: {data: data.jsonl, template: none, limit: 3, group_size: 1, groups_per_step: 4}
  - complete: {program: ./complete.sh}
  - optim: {lr: 1.0e-3, ema_every: 0}
END
make_program complete "exec sed -u '$complete'"
expect 65 "^caravan: 0 steps, 0 groups trained, 0 quarantined, 3 left over: they did not fill a step of 4" \
    timeout -k 10 120 "$bin/caravan" run "$work/short.yaml" --set run="$work/short"

# Where the disk has no room for its log, the end of a process says so.
mkdir "$work/disk"
if mount -t tmpfs -o size=3m caravan-test "$work/disk" 2>/dev/null; then
    trap 'umount -l "$work/disk"; rm -rf "$work"' EXIT
    printf '#!/bin/sh\nuntil [ -e %s/full ]; do sleep 0.1; done\nexit 1\n' "$work" >"$work/mine.sh"
    begin disk --set run="$work/disk/run" --set mine.timeout=0
    wait_for_line "$work/disk.err" "mine working"
    dd if=/dev/zero of="$work/disk/zeros" bs=4k 2>/dev/null || true
    touch "$work/full"
    ends_with 65 $pid "$work/disk.err"
    grep -q "^caravan: mine ended with exit code 65: it has logged nothing; the disk of its log is full (see $work/disk/run/logs/mine.log)" "$work/disk.err" ||
        fail "full: $(cat "$work/disk.err")"
else
    echo "programs: a log on a full disk is not tested, because mounting is not allowed"
fi

# Where the address space is limited, the limit is named.
if ! grep -q '__[at]san_init' "$bin/caravan"; then # a sanitizer maps more itself
    (
        ulimit -v 800000
        expect 69 "the address space is limited to 781 MB (ulimit -v)" "$bin/caravan" groups prune --store "$work/poison/store" --keep 1GiB
    ) || exit 1
fi

# A process that fails again and again ends the run when no group is done meanwhile.
program "sleep 1000 & wait"
begin dying --set mine.timeout=0
for _ in $(seq 2400); do
    pkill -USR1 -P $pid -f 'caravan program .*/nodes/last ' || true
    if grep -q "^caravan: last failed 5 times without a group done" "$work/dying.err"; then break; fi
    sleep 0.05
done
ends_with 70 $pid "$work/dying.err"
# Each failure has one line, which names the log or says that it was as before.
grep "^caravan: last " "$work/dying.err" | diff - <(
    killed="was killed by signal 10 (User defined signal 1) (see $work/dying/logs/last.log)"
    echo "caravan: last $killed; starting it again"
    for number in 2 3 4; do echo "caravan: last failed in the same way ($number of 5 times); starting it again"; done
    echo "caravan: last failed 5 times without a group done; it $killed"
) || fail "dying: $(cat "$work/dying.err")"

# When its adapter or the whole run is killed, what the program has started ends, too.
program "sleep $number & wait"
begin orphans --set mine.timeout=0
# wait_for_sleeper OTHER: until a child of the program sleeps that is not OTHER.
wait_for_sleeper() {
    other=$1
    another_sleeps() { sleeper=$(pgrep -f "^sleep $number" || true) && [ -n "$sleeper" ] && [ "$sleeper" != "$other" ]; }
    wait_until 60 another_sleeps || fail "no sleeper but '$sleeper': $(cat "$work/orphans.err")"
}
wait_for_sleeper none
kill -9 "$(pgrep -P $pid -f 'caravan program .*/nodes/mine ')"
wait_for_sleeper "$sleeper"
"$bin/caravan" top "$work/p.yaml" --set run="$work/orphans" --set mine.timeout=0 >"$work/top" 2>"$work/top.err" &
top=$!
wait_until 120 test -s "$work/top" || fail "top: $(cat "$work/top.err")"
kill -9 $pid
wait $pid 2>/dev/null || true
# caravan top says that it has lost the run.
got=0
wait $top || got=$?
[ $got = 69 ] && grep -qxF "caravan: lost the run in $work/orphans: its supervisor was killed or does not answer" "$work/top.err" ||
    fail "top: exit $got: $(cat "$work/top" "$work/top.err")"
wait_until 60 none_sleeps || fail "a child of a program outlives the run"
