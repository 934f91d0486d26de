# caravan ls, a run's directory in place of its file, and what other users may see of a run.
. tests/e2e/common.sh
trap 'kill ${pid:-} 2>/dev/null || true; rm -rf "$work"' EXIT
chmod 755 "$work"
make_questions 400
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

"$bin/caravan" run "$work/p.yaml" --set source.limit=400 2>"$work/run.err" &
pid=$!
for _ in $(seq 600); do
    "$bin/caravan" ls >"$work/ls"
    if grep -q "^ *- .* \(starting\|running\) *0:0[0-9]:[0-5][0-9]  *$pid  $work/run$" "$work/ls" && [ -s "$work/run/store/groups.lmdb" ]; then break; fi
    sleep 0.1
done
grep -q " $pid  $work/run$" "$work/ls" || fail "ls: $(cat "$work/ls")"
"$bin/caravan" top "$work/run" --once | grep -q '^slow  *[0-9]' || fail "top RUN"
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

"$bin/caravan" stop "$work/run" 2>"$work/out" || fail "stop RUN: $(cat "$work/out")"
ends_with 75 $pid "$work/run.err"
