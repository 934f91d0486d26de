# Requests to stop and full disks. A run whose processes all get SIGTERM several times in a row loses no step, goes on
# later, and leaves no old weights behind; a checkpoint that cannot be written does not end the training.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2 >/dev/null 2>&1
make_model >/dev/null 2>&1
make_pipeline ""
weights=$work/stopped/weights

run plain || fail "plain: $(cat "$work/plain.err")"
want=$(weights_of plain)

# The last step of the metrics and the newest checkpoint or state of the run.
last_step() {
    [ ! -f "$work/stopped/metrics.jsonl" ] || sed -n 's/.*"step": \([0-9]*\),.*/\1/p' "$work/stopped/metrics.jsonl" | tail -1
}
saved_step() {
    ls "$work/stopped/checkpoints" | sed -n 's/^\(step\|state\)-0*\([0-9]*\)$/\2/p' | sort -n | tail -1
}
two_steps_on() {
    now=$(last_step)
    [ "${now:-0}" -ge $((${before:-0} + 2)) ] || ! kill -0 $pid 2>/dev/null # a fast run may have ended
}

# Every process gets SIGTERM at once, as from a service manager, and twice more; the supervisor passes its own on.
for turn in 1 2 3; do
    before=$(last_step)
    "$bin/caravan" run "$work/p.yaml" --set run="$work/stopped" 2>>"$work/stopped.err" &
    pid=$!
    wait_until 300 two_steps_on || fail "no two steps after ${before:-0}: $(cat "$work/stopped.err")"
    everyone="$pid $(pgrep -P $pid || true)"
    for i in 1 2 3; do
        kill -TERM $everyone 2>/dev/null || true
        sleep 0.03
    done
    got=0
    wait $pid || got=$?
    # A fast run may have ended before.
    [ $got = 75 ] || grep -q "done: 8 steps" "$work/stopped.err" || fail "a stopped run ends with exit $got: $(cat "$work/stopped.err")"
    [ "$(saved_step)" = "$(last_step)" ] || fail "stopped after step $(last_step), but the last checkpoint is of step $(saved_step)"
    for kind in policy reference; do
        count=$(ls "$weights" | grep -c "^$kind-" || true)
        [ "$count" -le 3 ] || fail "$count files of the $kind's weights after stop $turn: $(ls "$weights")"
    done
    # What a killed optim leaves behind is removed, what other programs put there is not.
    touch "$weights/policy-000099.safetensors.tmp" "$weights/reference-000098.safetensors" "$weights/pulled-policy-0123"
done
# What a crash may leave: half a checkpoint; in the metrics lines of later steps and half a line.
mkdir "$work/stopped/checkpoints/step-000099.tmp"
printf '%s\n%s' '{"first": {"step": 1}, "step": 99}' '{"step": 1, "lo' >>"$work/stopped/metrics.jsonl"
timeout -k 10 300 "$bin/caravan" run "$work/p.yaml" --set run="$work/stopped" 2>>"$work/stopped.err" || fail "stopped: $(cat "$work/stopped.err")"
check_steps stopped 8
[ ! -e "$work/stopped/checkpoints/step-000099.tmp" ] || fail "half a checkpoint stays: $(ls "$work/stopped/checkpoints")"
[ "$(weights_of stopped)" = "$want" ] || fail "a run that was stopped three times trains other weights"
[ ! -e "$weights/policy-000099.safetensors.tmp" ] && [ ! -e "$weights/reference-000098.safetensors" ] || fail "old weights: $(ls "$weights")"
[ -e "$weights/pulled-policy-0123" ] || fail "another program's weights were removed"

# The checkpoint of step 2 cannot be written, since no file may be so large then; those of steps 1 and 3 can.
"$bin/caravan-source" --stdio --data "$work/data/train.jsonl" --format video-r1 --template none --epochs 2 --limit 3 2>/dev/null |
    "$bin/caravan-frames" --stdio --store "$work/store" --media-root "$work/data" $small 2>/dev/null |
    "$bin/caravan-rollout" --stdio --store "$work/store" --model "$work/model" --group-size 2 --max-new-tokens 6 --threads 1 2>/dev/null |
    "$bin/caravan-refscore" --stdio --store "$work/store" --model "$work/model" --threads 1 2>/dev/null |
    "$bin/caravan-reward" --stdio --method care 2>/dev/null | "$work/force.sh" >"$work/groups"
train() {
    exec "$bin/caravan-optim" --stdio --store "$work/store" --model "$work/model" --out "$work/$1" --groups-per-step 2 \
        --steps 3 --save-every 1 --lr 1e-3 --threads 1
}
(train whole) <"$work/groups" >"$work/trained" 2>"$work/err" || fail "optim: $(cat "$work/err")"

mkfifo "$work/in"
: >"$work/trained" # of another training until then
: >"$work/err"
(train full) <"$work/in" >"$work/trained" 2>"$work/err" &
pid=$!
exec 3>"$work/in"
sed -n 1,2p "$work/groups" >&3
wait_for_line "$work/trained" '"trained":{"step":1}'
prlimit --pid $pid --fsize=1000000:unlimited
sed -n 3,4p "$work/groups" >&3
wait_for_line "$work/err" "checkpoint of step 2: .*File too large"
prlimit --pid $pid --fsize=unlimited:unlimited
sed -n 5,6p "$work/groups" >&3 || fail "optim ended: $(cat "$work/err")"
exec 3>&-
wait $pid || fail "optim ended with exit $? when it could not write a checkpoint: $(cat "$work/err")"
[ "$(cd "$work/full" && echo *)" = "events.out.tfevents.0000000001.caravan latest metrics.jsonl step-000001 step-000003" ] || fail "checkpoints: $(ls "$work/full")"
check_steps full 3
cmp "$work/whole/step-000003/model.safetensors" "$work/full/step-000003/model.safetensors" || fail "a missing checkpoint changes the weights"
