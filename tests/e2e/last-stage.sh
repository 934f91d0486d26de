# Pipelines that end without optim: with a stage of caravan's, with rollout in two replicas, and with a user's program. What
# they leave in the store is the same when processes are killed.
. tests/e2e/common.sh
make_data 6
make_model
cat >"$work/data/one-missing.jsonl" <<END
$(cat "$work/data/train.jsonl")
{"problem_id": 99, "problem": "What is it?", "data_type": "video", "problem_type": "free-form", "options": [], "path": "./clips/none.mp4", "solution": "<answer>x</answer>"}
END
cat >"$work/p.yaml" <<END
run: run
model: model
threads: 1
precision: float32
stages:
  - source: {data: data/one-missing.jsonl, format: video-r1, media_root: data, group_size: 1}
  - frames: {min_pixels: 3136, max_pixels: 3136}
  - rollout: {max_new_tokens: 6, temperature: 0.1, top_p: 0.001, replicas: 2}
  - score: {}
END
# A program that takes its time, from when processes were killed on, and drops what says in which order the groups were
# issued.
make_program slow "exec sed -u -e 'e until [ -e $work/hit ]; do sleep 0.05; done; sleep 0.1' -e 's/\"requires\":{[^}]*},//'"
sed 's/- score:.*/&\n  - slow: {program: .\/slow.sh, replicas: 2}/' "$work/p.yaml" >"$work/slow.yaml"
sed '/- score:/d' "$work/p.yaml" >"$work/rollout.yaml"

# run FILE NAME OPTION...: runs the pipeline to its end in $work/NAME.
run() {
    file=$1 name=$2
    shift 2
    timeout -k 10 300 "$bin/caravan" run "$work/$file.yaml" --set run="$work/$name" "$@" 2>"$work/$name.err" || fail "$name: $(cat "$work/$name.err")"
    grep -q "done: 12 groups done, 1 quarantined" "$work/$name.err" || fail "$name: $(cat "$work/$name.err")"
}

# groups_of NAME: prints what the run has left in its store, but for the times.
groups_of() {
    "$bin/caravan" groups export --store "$work/$1/store" | sed 's/"times":{[^}]*}//'
}

run p plain
groups_of plain >"$work/want"
[ "$(grep -c '"quarantine":{"stage":"frames"' "$work/want")" = 1 ] || fail "the missing clip is not in the store"
[ "$(grep -c '"completions":.*"scores":' "$work/want")" = 12 ] || fail "some groups are not whole: $(cat "$work/want")"
grep -q "frames: .*none.mp4: No such file" "$work/plain.err" || fail "nobody was told: $(cat "$work/plain.err")"
for name in checkpoints weights metrics.jsonl; do
    [ ! -e "$work/plain/$name" ] || fail "a run that trains nothing has $name"
done

run rollout rollout
sed 's/,"scores":{[^}]*}//' "$work/want" >"$work/sampled"
groups_of rollout | cmp - "$work/sampled" || fail "rollout as the last stage: other groups"

# Every process but the run itself is killed, one after the other.
"$bin/caravan" run "$work/slow.yaml" --set run="$work/killed" 2>"$work/killed.err" &
pid=$!
for turn in 1 2 3 4; do
    until children=$(pgrep -P $pid) || ! kill -0 $pid 2>/dev/null; do sleep 0.1; done
    sleep 0.3
    set -- $children
    [ $# -gt 0 ] || break
    shift $((turn * 3 % $#))
    kill -9 "$1" 2>/dev/null || true
    [ $turn = 1 ] || touch "$work/hit"
done
wait $pid || fail "killed: $(cat "$work/killed.err")"
grep -q "killed by signal 9" "$work/killed.err" || fail "nothing was killed: $(cat "$work/killed.err")"
groups_of killed | cmp - "$work/want" || fail "the groups differ after killed stages"

# On a network file system, here a preloaded library's word for one directory, LMDB files do not work: the file's key
# `store` puts them elsewhere, and the run is the same.
if ! grep -q '__[at]san_init' "$bin/caravan"; then # a sanitizer must be loaded first
    cat >"$work/fuse.c" <<'END'
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
int statfs(const char *path, struct statfs *out) {
    const int code = (int)syscall(SYS_statfs, path, out);
    if (!code && !strncmp(path, getenv("FUSE_DIR"), strlen(getenv("FUSE_DIR")))) out->f_type = 0x65735546;
    return code;
}
END
    cc -shared -fPIC -o "$work/fuse.so" "$work/fuse.c"
    export FUSE_DIR=$work/fuse LD_PRELOAD=$work/fuse.so
    expect 64 "do not work on FUSE, a network file system: set .store:. to a directory on a local disk" \
        timeout -k 10 60 "$bin/caravan" run "$work/p.yaml" --set run="$work/fuse/run"
    (echo "store: local" && cat "$work/p.yaml") >"$work/local.yaml"
    run local fuse/run
    unset LD_PRELOAD
    "$bin/caravan" groups export --store "$work/local" | sed 's/"times":{[^}]*}//' | cmp - "$work/want" || fail "other groups in the file's store"
    ls "$work/local" | grep -q '^ledger-.*\.lmdb$' || fail "no ledger in the file's store: $(ls "$work/local")"
    [ -z "$(find "$work/fuse" -name '*.lmdb*')" ] || fail "on the network file system: $(find "$work/fuse")"
fi
