# Functions of the scripts that run pipelines, which source this file after common.sh.

# make_pipeline OPTIONS: writes a pipeline of 8 steps of 2 groups, with OPTIONS for rollout and refscore. A program sets the
# advantages.
make_pipeline() {
    make_program force "exec sed -u -e '$force'"
    # Takes its time.
    make_program slow "exec sed -u -e '$force' -e 'e sleep 0.2'"
    # So does this one, and it holds groups back as `hold` says: a run cannot end before something was done to it.
    make_program gated 'while IFS= read -r line; do
    epoch=${line#*\"id\":\"e} && epoch=${epoch%%-*}
    sleep 0.2
    while [ "$epoch" -ge "$(cat '"$work"'/hold 2>/dev/null || echo 1000000)" ]; do sleep 0.1; done
    printf "%s\n" "$line" | sed -e '"'$force'"'
done'
    cat >"$work/p.yaml" <<END
name: faults
run: run
model: model
seed: 7
threads: 1
precision: float32
stages:
  - source: {data: data/train.jsonl, format: video-r1, media_root: data, template: none, group_size: 2, groups_per_step: 2, epochs: 4, limit: 4}
  - frames: {min_pixels: 3136, max_pixels: 3136}
  - rollout: {max_new_tokens: 8, $1}
  - refscore: {$1}
  - reward: {method: care}
  - force: {program: ./force.sh}
  - optim: {lr: 1.0e-3, ema_every: 2}
END
}

# make_held STEPS: writes held.sh, which does what slow.sh does for so many steps (at most 9) and then waits for the file
# $work/go: the run cannot end before something was done to it, however late that is.
make_held() {
    make_program held "exec sed -u -e '$force' -e 'e sleep 0.2' -e '/\"requires\":{\"policy\":[$1-9]/e while [ ! -e $work/go ]; do sleep 0.1; done'"
}

# run NAME OPTION...: runs the pipeline to its end in $work/NAME, with its standard error in $work/NAME.err.
run() {
    name=$1
    shift
    timeout -k 10 400 "$bin/caravan" run "$work/p.yaml" --set run="$work/$name" "$@" 2>"$work/$name.err"
}

# begin NAME OPTION...: starts it in the background; $pid is its process.
begin() {
    name=$1
    shift
    "$bin/caravan" run "$work/p.yaml" --set run="$work/$name" "$@" 2>"$work/$name.err" &
    pid=$!
}

# weights_of RUN: prints the hash of the weights of its last checkpoint.
weights_of() {
    sha256sum "$work/$1/checkpoints/latest/model.safetensors" | cut -d' ' -f1
}

# check_steps RUN COUNT: its metrics must have each step from 1 to COUNT once, in order.
check_steps() {
    sed -n 's/.*"step": \([0-9]*\),.*/\1/p' "$work/$1/metrics.jsonl" >"$work/steps"
    seq 1 "$2" | cmp - "$work/steps" || fail "$1: steps $(tr '\n' ' ' <"$work/steps")"
}

# wait_for_step RUN STEP: waits until the metrics of the run have the step.
wait_for_step() {
    wait_until 120 grep -qs "\"step\": $2," "$work/$1/metrics.jsonl" || fail "$1: no step $2"
}

# hold EPOCH: the program gated.sh holds groups of this epoch, counted from 0, and of later ones until it is called with a
# later one.
hold() { echo "$1" >"$work/hold.new" && mv "$work/hold.new" "$work/hold"; }
