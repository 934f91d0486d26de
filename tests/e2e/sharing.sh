# Processes that share the weights in the memory of one device, on the emulator: rollout and refscore compute with optim's
# own. The final weights are those of a run that writes each version to a file, also when each stage is killed in turn, and
# where the memory cannot be shared, so that files take its place. When optim is lost, the others give its memory back. With
# max_staleness above 0 they copy the weights.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
[ -e "$bin/../lib/libcaravan-emulated.so" ] || exit 0 # the build for the thread sanitizer lacks it
make_data 2
sed -e 's/"num_hidden_layers": 4/"num_hidden_layers": 1/; s/"depth": 2/"depth": 1/; s/\[1\]/[0]/' \
    -e 's/hidden_size": 128/hidden_size": 32/; s/"hidden_size": 64/"hidden_size": 16/; s/"intermediate_size": .*,/"intermediate_size": 32,/' \
    -e 's/_heads": 4/_heads": 2/; s/\[4, 6, 6\]/[2, 3, 3]/' pipelines/miniature/shape.json >"$work/shape.json"
"$bin/caravan" init "$work/model" --shape "$work/shape.json" --train-tokenizer "$work/data/text.txt" --seed 3
make_pipeline ""
options=(--set device=emulated --set source.groups_per_step=1 --set source.epochs=1 --set source.limit=4 --set rollout.max_new_tokens=3
    --set frames.min_frames=2 --set frames.max_frames=2 --set optim.save_every=1)

# borrowed RUN STAGE HOW: the stage's log must say that it has optim's weights, and how.
borrowed() {
    grep -q "weights in the memory of another process, which are $3" "$work/$1/logs/$2.log" ||
        fail "$1: $2 did not use optim's weights: $(cat "$work/$1/logs/$2.log")"
}

run files "${options[@]}" --set optim.publish=files || fail "files: $(cat "$work/files.err")"
check_steps files 4
[ "$(grep -c '"device": "emulated, sm_90"}$' "$work/files/metrics.jsonl")" = 4 ] || fail "no kind of GPU: $(cat "$work/files/metrics.jsonl")"
if grep "another process" "$work"/files/logs/*.log; then fail "weights were lent that are written to files"; fi

# returned: waits until no process has shared memory of the device. Whoever has it holds a lock on its file.
returned() {
    for _ in $(seq 1200); do
        held=
        for file in "$work"/memory/shared-*; do
            [ ! -e "$file" ] || flock --nonblock "$file" true || held=$file
        done
        [ -n "$held" ] || return 0
        sleep 0.1
    done
    kill -CONT $pid
    fail "somebody keeps what optim had lent: $(tail -n 3 "$work"/lent/logs/r*.log)"
}

# The third step waits until optim was killed, so that another optim trains it.
mkdir "$work/memory"
make_held 2
CARAVAN_EMULATED_MEMORY=1000000000000:$work/memory \
    "$bin/caravan" run "$work/p.yaml" --set run="$work/lent" --set force.program="$work/held.sh" "${options[@]}" 2>"$work/lent.err" &
pid=$!
for stage in source frames rollout refscore reward; do
    wait_for_step lent 1
    pkill -KILL -P $pid -f "caravan-$stage" || fail "there is no $stage: $(cat "$work/lent.err")"
done
wait_for_step lent 2
[ -n "$(ls "$work"/memory/shared-*)" ] || fail "no memory is shared"
kill -STOP $pid # it starts no other optim
pkill -KILL -P $pid -f "caravan-optim" || fail "there is no optim: $(cat "$work/lent.err")"
returned
touch "$work/go"
kill -CONT $pid
wait $pid || fail "lent: $(cat "$work/lent.err")"
[ "$(grep -c "killed by signal 9" "$work/lent.err")" = 6 ] || fail "not all were killed: $(cat "$work/lent.err")"
check_steps lent 4
borrowed lent rollout "used in place"
[ "$(grep -o 'policy-[0-9-]*' "$work/lent/logs/rollout.log" | sort -u | wc -l)" = 2 ] || # once from each process of optim
    fail "rollout did not use the second optim's weights: $(cat "$work/lent/logs/rollout.log")"
borrowed lent refscore "used in place"
if ls "$work"/lent/weights/*.safetensors 2>/dev/null; then fail "lent weights were written to files, too"; fi
[ "$(weights_of lent)" = "$(weights_of files)" ] || fail "the weights differ from those of a run with files"

# Memory that cannot be opened, or not even be exported.
for lacks in import export; do
    CARAVAN_EMULATED_IPC_LACKS=$lacks run $lacks "${options[@]}" || fail "$lacks: $(cat "$work/$lacks.err")"
    check_steps $lacks 4
    [ "$(weights_of $lacks)" = "$(weights_of files)" ] || fail "$lacks: the weights differ from those of a run with files"
    [ "$(grep -c "are written to files" "$work/$lacks.err")" = 1 ] || fail "$lacks: not one line says so: $(cat "$work/$lacks.err")"
done
grep -q "optim: .* cannot use the weights in optim's memory: .*mapping of buffer object failed; they are written to files from now on" \
    "$work/import.err" || fail "import: $(cat "$work/import.err")"
grep -q "optim: emulated: operation not supported: weights are written to files, not lent" "$work/export.err" ||
    fail "export: $(cat "$work/export.err")"

run copied "${options[@]}" --set source.max_staleness=1 --set source.limit=2 || fail "copied: $(cat "$work/copied.err")"
check_steps copied 2
borrowed copied rollout "copied on the device"
borrowed copied refscore "copied on the device"

# Each rank lends what it has to the replicas on its device.
two=(--set optim.ranks=2 --set "optim.device=emulated:[0,4]" --set "rollout.device=emulated:[0,4]" --set rollout.replicas=2 --set refscore.device=emulated:4)
run ranks "${options[@]}" "${two[@]}" --set source.groups_per_step=2 || fail "ranks: $(cat "$work/ranks.err")"
check_steps ranks 2
for log in rollout rollout-2 refscore; do borrowed ranks $log "used in place"; done
run rank-files "${options[@]}" --set optim.publish=files --set source.groups_per_step=2 || fail "rank-files: $(cat "$work/rank-files.err")"
[ "$(weights_of ranks)" = "$(weights_of rank-files)" ] || fail "the weights of ranks differ from those of one process"
# A device without a rank gets files.
run lonely "${options[@]}" "${two[@]}" --set refscore.device=emulated:1 --set optim.publish=lend || fail "lonely: $(cat "$work/lonely.err")"
check_steps lonely 4
[ "$(grep -c "refscore-1 cannot use .* on another device than .*; they are written to files from now on" "$work/lonely.err")" = 1 ] || fail "lonely: $(cat "$work/lonely.err")"
[ "$(weights_of lonely)" = "$(weights_of files)" ] || fail "lonely: the weights differ from those of a run with files"

# Adapters, whose base is lent with them: optim is killed, and the adapters are those of a run with files.
adapters_of() { sha256sum <"$work/$1/checkpoints/latest/adapter_model.safetensors"; }
for name in adapter-files adapter-half; do
    [ $name = adapter-files ] && precision=float32 || precision=bfloat16
    run $name "${options[@]}" --set optim.lora=4 --set optim.publish=files --set precision=$precision || fail "$name: $(cat "$work/$name.err")"
    [ "$(grep -c '"logprob_difference_max": 0,' "$work/$name/metrics.jsonl")" = 4 ] || fail "$name: sampler and trainer differ: $(cat "$work/$name/metrics.jsonl")"
done
rm "$work/go"
make_held 1
begin adapters "${options[@]}" --set optim.lora=4 --set force.program="$work/held.sh"
wait_for_step adapters 1
pkill -KILL -P $pid -f "caravan-optim" || fail "there is no optim: $(cat "$work/adapters.err")"
touch "$work/go"
wait $pid || fail "adapters: $(cat "$work/adapters.err")"
check_steps adapters 4
for stage in rollout refscore; do
    borrowed adapters $stage "used in place"
    [ "$(grep -o '\(policy\|reference\)-[0-9-]*' "$work/adapters/logs/$stage.log" | sort -u | wc -l)" = 2 ] || fail "$stage did not use the second optim's adapters"
done
[ "$(adapters_of adapters)" = "$(adapters_of adapter-files)" ] || fail "lent adapters train something else"
