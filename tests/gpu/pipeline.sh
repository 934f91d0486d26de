#!/bin/sh
# pipeline.sh DEVICE DIR: trains a small model through all stages on the device, once undisturbed and once while rollout,
# refscore and optim are each killed with SIGKILL. The final weights must be equal to the bit, and the log-probabilities
# of sampler and trainer too. Runs in the archive's directory; the runs stay in DIR/plain and DIR/killed. STEPS: 8.
set -eu
device=$1 dir=$2/pipeline steps=${STEPS:-8}
rm -rf "$dir"
mkdir -p "$dir"

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# The advantages of a random model would all be zero. A group, which is a step, waits for the file `next`, which it takes
# away, or for `all`: so no run ends before its last process is killed.
cat >"$dir/force.sh" <<'END'
#!/bin/sh
cd "$(dirname "$0")"
while IFS= read -r group; do
    until [ -e all ] || mv next taken 2>/dev/null; do sleep 0.02; done
    printf '%s\n' "$group" | sed 's/"advantages":\[[^]]*\]/"advantages":[1.0,-1.0]/'
done
END
chmod +x "$dir/force.sh"
cat >"$dir/p.yaml" <<END
name: gpu-check
run: plain
model: $PWD/data/model
media_root: $PWD/data
device: $device
precision: bfloat16
seed: 7
stages:
  - source: {data: $PWD/data/train.jsonl, format: video-r1, template: none, group_size: 2, groups_per_step: 1, epochs: $steps, limit: 1}
  - frames: {min_pixels: 3136, max_pixels: 3136}
  - rollout: {max_new_tokens: 8}
  - refscore: {}
  - reward: {method: care}
  - force: {program: ./force.sh}
  - optim: {lr: 1.0e-3, ema_every: 2}
END

# start RUN: begins a run, whose store has the frames already.
start() {
    mkdir -p "$dir/$1/store"
    cp -R data/store/frames.lmdb* "$dir/$1/store/"
    bin/caravan run "$dir/p.yaml" --set run="$dir/$1" 2>"$dir/$1.err" &
    pid=$!
}

# finish RUN: waits for its end, and prints the hash of its weights.
finish() {
    wait $pid || fail "$1: exit $?: $(tail -n 5 "$dir/$1.err" "$dir/$1"/logs/*.log)"
    grep -q "done: $steps steps, $steps groups trained, 0 quarantined" "$dir/$1.err" || fail "$1: $(cat "$dir/$1.err")"
    grep -v '"logprob_difference_max": 0[,}]' "$dir/$1/metrics.jsonl" && fail "$1: sampler and trainer differ"
    sha256sum <"$dir/$1/checkpoints/latest/model.safetensors"
}

# kill_stage NAME: kills the process of one of the run's stages.
kill_stage() {
    for child in $(cat "/proc/$pid/task/$pid/children"); do
        [ "$(cat "/proc/$child/comm")" = "$1" ] && kill -9 "$child" && return
    done
    return 0
}

touch "$dir/all"
start plain
finish plain >"$dir/want"
rm "$dir/all"
start killed
step=0
for stage in caravan-rollout caravan-refscor caravan-optim; do
    step=$((step + 1))
    touch "$dir/next"
    while kill -0 $pid && ! grep -qs "\"step\": $step," "$dir/killed/metrics.jsonl"; do sleep 0.02; done
    kill_stage $stage
done
touch "$dir/all"
finish killed >"$dir/got"
[ "$(grep -c 'killed by signal 9' "$dir/killed.err")" = 3 ] || fail "not each stage was killed: $(cat "$dir/killed.err")"
cmp "$dir/want" "$dir/got" || fail "the weights differ after SIGKILL"
echo "{\"pipeline\": \"$steps steps\", \"weights after SIGKILL of rollout, refscore, optim\": \"equal to the bit\"}"
