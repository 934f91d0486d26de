# Optim as one process and as two and three ranks: the final checkpoints are equal to the byte, also when each rank is killed
# or stopped on the way, and when a run goes on with another number of them. Of a run that ended or was killed no rank is left.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline "device: cpu"
sed -i 's/groups_per_step: 2, epochs: 4/groups_per_step: 4, epochs: 16/; s/optim: {/optim: {device: cpu, rank_timeout: 4, save_every: 3, /' "$work/p.yaml"
steps=16

# files_of RUN: prints the hashes of the last checkpoint's weights and state, and of the last step's metrics.
files_of() {
    (cd "$work/$1/checkpoints/latest" && sha256sum -- *.safetensors)
    tail -n 1 "$work/$1/metrics.jsonl" | sed 's/.*\("loss": [^,]*,\).*\("grad_norm": [^,]*,\).*/\1 \2/'
}

# same RUN TEXT: the run has each step once and ends as one process does.
same() {
    check_steps "$1" $steps
    [ "$(files_of "$1")" = "$want" ] || fail "$2: $(files_of "$1") instead of $want"
}

# rank_of RUN NAME: prints the process of a rank, "optim" or "optim-2".
rank_of() { pgrep -f "^[^ ]*caravan-optim --node=$work/$1/nodes/$2 "; }
# nothing_left RUN: no process of the run is left.
nothing_left() { ! pgrep -f "$work/$1/nodes/" >/dev/null; }
# another RUN NAME PID: a rank has another process than that.
another() { now=$(rank_of "$1" "$2") && [ "$now" != "$3" ]; }
# beyond RUN COUNT: the metrics of the run have more lines than that.
beyond() { [ "$(wc -l <"$work/$1/metrics.jsonl")" -gt "$2" ]; }

run one || fail "one: $(cat "$work/one.err")"
want=$(files_of one)
[ "$(wc -l <<<"$want")" = 3 ] || fail "one: $want"
for ranks in 2 3; do
    run "$ranks" --set optim.ranks=$ranks || fail "$ranks ranks: $(cat "$work/$ranks.err")"
    same "$ranks" "$ranks ranks train something else"
    [ -f "$work/$ranks/logs/optim-$ranks.log" ] || fail "$ranks ranks: no log of the last one"
done
grep -q '"rank_wait": null' "$work/one/metrics.jsonl" || fail "one process waits for ranks: $(tail -n 1 "$work/one/metrics.jsonl")"
awk -F'"rank_wait": |"seconds": ' '!($3 > 0 && $3 + 0 < $2 + 0) { exit 1 }' "$work/3/metrics.jsonl" || fail "rank_wait: $(cat "$work/3/metrics.jsonl")"
nothing_left 3 || fail "a rank is left: $(pgrep -fa "$work/3/nodes/")"

# Each rank is killed, then, in another run, each is stopped: all come back at once, and after rank_timeout, which is longer
# than a busy machine keeps a rank waiting. Two more steps may be taken with each fault: no run can end before the last one,
# and a rank that is stopped is missed.
declare -A before timeouts=([KILL]=100 [STOP]=12)
for signal in KILL STOP; do
    hold 1
    begin $signal --set optim.ranks=3 --set optim.rank_timeout=${timeouts[$signal]} --set force.program="$work/gated.sh"
    wait_for_step $signal 1
    for name in optim optim-2 optim-3; do
        for each in optim optim-2 optim-3; do
            wait_until 60 rank_of $signal $each >/dev/null || fail "$each is not there: $(cat "$work/$signal.err")"
            before[$each]=$(rank_of $signal $each)
        done
        lines=$(wc -l <"$work/$signal/metrics.jsonl")
        hold $((lines + 1))
        kill -$signal "${before[$name]}"
        hold $((lines + 2))
        for each in optim optim-2 optim-3; do
            wait_until 90 another $signal $each "${before[$each]}" || fail "$each did not start again after SIG$signal of $name"
        done
        wait_until 90 beyond $signal "$lines" || fail "no step after SIG$signal of $name"
    done
    hold $steps
    wait $pid || fail "$signal: $(cat "$work/$signal.err")"
    same $signal "other weights after SIG$signal"
    nothing_left $signal || fail "a rank is left: $(pgrep -fa "$work/$signal/nodes/")"
done
# Nobody waited for a rank that was killed: the supervisor had seen its end, or another rank that its connection was closed.
! grep "has done nothing" "$work/KILL.err" || fail "a killed rank was waited for"
[ "$(grep -ci "starting it again.*, and the other ranks with it" "$work/KILL.err")" = 3 ] || fail "not three starts: $(cat "$work/KILL.err")"
grep -q "was killed by signal 9 (Killed); starting it again, and the other ranks with it" "$work/KILL.err" || fail "no kill: $(cat "$work/KILL.err")"
for rank in 0 1 2; do
    grep -q "rank $rank has done nothing for 12 s, .* its process is silent" "$work/STOP.err" || fail "rank $rank was not named: $(cat "$work/STOP.err")"
done

# With 3, then 1, then 2 ranks; stopped in between, and killed as a whole.
hold $((steps - 1))
begin resumed --set optim.ranks=3 --set force.program="$work/gated.sh"
wait_for_step resumed 3
kill -TERM $pid
ends_with 75 $pid "$work/resumed.err"
nothing_left resumed || fail "a rank is left after a stop"
begin resumed --set optim.ranks=1 --set force.program="$work/gated.sh"
wait_for_step resumed 7
kill -KILL $pid
wait $pid 2>/dev/null || true
wait_until 60 nothing_left resumed || fail "a rank is left after a kill of the supervisor"
begin resumed --set optim.ranks=2 --set force.program="$work/gated.sh"
wait_for_step resumed 11
kill -KILL $pid
wait $pid 2>/dev/null || true
wait_until 60 nothing_left resumed || fail "a rank is left after a kill of the supervisor"
run resumed --set optim.ranks=2 || fail "resumed: $(cat "$work/resumed.err")"
same resumed "other weights after 3, 1 and 2 ranks"

# A run is stopped while one of its ranks is: the others give it up after rank_timeout, and nothing is left.
begin stopped --set optim.ranks=3 --set force.program="$work/gated.sh"
wait_for_step stopped 1
kill -STOP "$(rank_of stopped optim-2)"
kill -TERM $pid
ends_with 75 $pid "$work/stopped.err"
nothing_left stopped || fail "a rank is left after a stop: $(pgrep -fa "$work/stopped/nodes/")"

# So too when rank 0 has nothing to save and ends well.
begin unbegun --set optim.ranks=3 --set force.program="$work/gated.sh"
wait_until 60 rank_of unbegun optim-2 >/dev/null || fail "no second rank"
kill -STOP "$(rank_of unbegun optim-2)"
kill -TERM $pid
ends_with 75 $pid "$work/unbegun.err"
nothing_left unbegun || fail "a rank is left after a stop: $(pgrep -fa "$work/unbegun/nodes/")"

expect 64 'ranks: only in a pipeline' "$bin/caravan-optim" --stdio --model "$work/model" --out "$work/out" --ranks 2
