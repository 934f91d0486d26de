# An evaluation whose source is killed again and again while groups are settled all the time: the next source goes on from
# its ledger, and no stage takes a group for settled that this ledger lacks.
. tests/e2e/common.sh
make_questions 6000
# In the middle it waits for a kill: the run does not end without one.
make_program last "sed -u 3000q; while [ ! -e $work/killed ]; do sleep 0.1; done; exec cat"
cat >"$work/p.yaml" <<END
run: run
stages:
  - source: {data: data.jsonl, template: none, group_size: 2}
  - copy: {program: cat}
  - last: {program: ./last.sh}
END

"$bin/caravan" run "$work/p.yaml" --set run="$work/run" 2>"$work/err" &
pid=$!
kills=0
until=$((SECONDS + 300))
while sleep 0.5 && [ -e /proc/$pid ] && [ $SECONDS -lt $until ]; do
    for child in $(pgrep -P $pid); do
        if [ $kills -lt 5 ] && grep -aq /nodes/source "/proc/$child/cmdline" 2>/dev/null && kill -9 "$child"; then
            kills=$((kills + 1))
            touch "$work/killed"
        fi
    done
done
if [ $SECONDS -ge $until ]; then
    kill -TERM $pid
    wait $pid || true
    fail "the run hangs: $(tail -3 "$work/err")"
fi
wait $pid || fail "exit $?: $(tail -5 "$work/err")"
[ $kills -gt 0 ] || fail "nothing was killed: $(cat "$work/err")"
grep -q "done: 6000 groups done, 0 quarantined" "$work/err" || fail "$(tail -5 "$work/err")"
