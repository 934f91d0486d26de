# Ranks of optim on GPUs, which the emulator plays: gradients and weights go from GPU to GPU through the emulator's NCCL,
# or through the hosts where there is none. The final checkpoints are equal to the byte to those of one process, also when
# each rank is killed or stopped on the way. An exchange that hangs is given up, and the message names a rank.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
[ -e "$bin/../lib/libcaravan-emulated.so" ] || exit 0 # the build for the thread sanitizer lacks it
make_data 2
make_tiny_model
make_pipeline "device: cpu"
sed -i 's/epochs: 4, limit: 4/epochs: 10, limit: 2/; s/optim: {/optim: {device: emulated, rank_timeout: 5, save_every: 3, /' "$work/p.yaml"
export CARAVAN_NCCL=$bin/../lib/libcaravan-emulated.so CARAVAN_EMULATED_NCCL=delay=10
steps=10 # an epoch each

# files_of RUN: prints the hashes of the last checkpoint's weights and state, and of the last step's metrics.
files_of() {
    (cd "$work/$1/checkpoints/latest" && sha256sum -- *.safetensors)
    tail -n 1 "$work/$1/metrics.jsonl" | sed 's/.*\("loss": [^,]*,\).*\("grad_norm": [^,]*,\).*/\1 \2/'
}

# same RUN TEXT: the run has each step once, ends as one process does, and says in optim's log which way tensors go.
same() {
    check_steps "$1" $steps
    [ "$(files_of "$1")" = "$want" ] || fail "$1: $(files_of "$1") instead of $want"
    grep -q "gradients and weights go from GPU to GPU $2" "$work/$1/logs/optim.log" || fail "$1: $(cat "$work/$1/logs/optim.log")"
}
rank_of() { pgrep -f "^[^ ]*caravan-optim --node=$work/$1/nodes/$2 "; }
another() { now=$(rank_of "$1" "$2") && [ "$now" != "$3" ]; }
nothing_left() { ! pgrep -f "$work/$1/nodes/" >/dev/null; }
beyond() { [ "$(wc -l <"$work/$1/metrics.jsonl")" -gt "$2" ]; }

run one || fail "one: $(cat "$work/one.err")"
want=$(files_of one)
[ "$(wc -l <<<"$want")" = 3 ] || fail "one: $want"
if grep "GPU to GPU" "$work"/one/logs/*.log; then fail "one process exchanges tensors"; fi
run two --set optim.ranks=2 || fail "two: $(cat "$work/two.err")"
same two "by NCCL 2.99.99$"
awk -F'"rank_wait": |"seconds": ' '!($3 > 0 && $3 + 0 < $2 + 0) { exit 1 }' "$work/two/metrics.jsonl" || fail "rank_wait: $(cat "$work/two/metrics.jsonl")"
CARAVAN_NCCL=none run three --set optim.ranks=3 || fail "three: $(cat "$work/three.err")"
same three "through the memory of the hosts: rank 0 uses no NCCL"

# Two more steps may be taken with each fault: the run cannot end before the last one, and a rank that is stopped is missed.
declare -A before
hold 1
begin faults --set optim.ranks=2 --set force.program="$work/gated.sh"
wait_for_step faults 1
for signal in KILL STOP; do
    for name in optim optim-2; do
        for each in optim optim-2; do
            wait_until 60 rank_of faults $each >/dev/null || fail "$each is not there: $(cat "$work/faults.err")"
            before[$each]=$(rank_of faults $each)
        done
        lines=$(wc -l <"$work/faults/metrics.jsonl")
        hold $((lines + 1))
        kill -$signal "${before[$name]}"
        hold $((lines + 2))
        for each in optim optim-2; do
            wait_until 90 another faults $each "${before[$each]}" || fail "$each did not start again after SIG$signal of $name: $(cat "$work/faults.err")"
        done
        wait_until 90 beyond faults "$lines" || fail "no step after SIG$signal of $name"
    done
done
hold $steps
wait $pid || fail "faults: $(cat "$work/faults.err")"
same faults "by NCCL"

# The twelfth exchange of rank 1, in the first steps, hangs; and so again after each start.
CARAVAN_EMULATED_NCCL=hang=1:12 begin hangs --set optim.ranks=2
wait_for_line "$work/hangs.err" "for [0-9]* s nothing has come from rank [01]; all processes answer"
kill -TERM $pid
wait $pid || true
wait_until 60 nothing_left hangs || fail "a rank is left: $(pgrep -fa "$work/hangs/nodes/")"
CARAVAN_EMULATED_NCCL=error=1:12 begin fails --set optim.ranks=2
wait_for_line "$work/fails.err" "the GPUs of rank 1 and the others: NCCL: remote process exited"
kill -TERM $pid
wait $pid || true
wait_until 60 nothing_left fails || fail "a rank is left: $(pgrep -fa "$work/fails/nodes/")"

# An NCCL that is named must be there.
if CARAVAN_NCCL=/nowhere/libnccl.so.2 run named --set optim.ranks=2; then fail "there is no such NCCL"; fi
grep -q "cannot load NCCL: /nowhere/libnccl.so.2" "$work/named.err" || fail "named: $(cat "$work/named.err")"
