# Ranks of optim on two machines with CURVE, in two network namespaces where they can be created, else on two ports of one
# machine: the final checkpoints are equal to the byte to those of one process, also when ranks and supervisors are killed or
# stopped on the way. Where there are namespaces, the second machine sees no file of the first one's run.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline "device: cpu"
sed -i 's/groups_per_step: 2, epochs: 4/groups_per_step: 4, epochs: 8/; s/optim: {/optim: {device: cpu, rank_timeout: 5, save_every: 3, /' "$work/p.yaml"
steps=8

# files_of DIR: prints the hashes of the last checkpoint's weights and state, and of the last step's metrics.
files_of() {
    (cd "$work/$1/checkpoints/latest" && sha256sum -- *.safetensors training.json)
    tail -n 1 "$work/$1/metrics.jsonl" | sed 's/.*\("loss": [^,]*,\).*\("grad_norm": [^,]*,\).*/\1 \2/'
}

run alone || fail "alone: $(cat "$work/alone.err")"
want=$(files_of alone)
[ "$(wc -l <<<"$want")" = 4 ] || fail "alone: $want"

two_machines 10.78.0 "unshare -m true"
[ -z "$in_two" ] || in_two="$in_two unshare -m sh -c"
take_ports
key_one=$("$bin/caravan" keygen "$work/one.key")
key_two=$("$bin/caravan" keygen "$work/two.key")
cat >>"$work/p.yaml" <<END
machines:
  one: {address: $one, port: $port, key: "$key_one"}
  two: {address: $two, port: $((port + 512)), key: "$key_two"}
END
"$bin/caravan" check "$work/p.yaml" --set optim.on=one,two --set optim.ranks=2 >"$work/out" 2>&1 || fail "check: $(cat "$work/out")"
grep -q "^one  .* $((port + 448))-$((port + 450))$" "$work/out" || fail "the ports of one: $(cat "$work/out")"
grep -q "^two  .* $((port + 512)), $((port + 961))-$((port + 962))$" "$work/out" || fail "the ports of two: $(cat "$work/out")"
if grep "are not encrypted" "$work/out"; then fail "on the CPU everything is encrypted"; fi
"$bin/caravan" check "$work/p.yaml" --set optim.on=one,two --set optim.device=emulated >"$work/out" 2>&1 || fail "check: $(cat "$work/out")"
grep -q "optim: device: gradients and weights that go from GPU to GPU between machines are not encrypted" "$work/out" || fail "check: $(cat "$work/out")"

# start MACHINE NAME OPTION...: runs that machine's part in the background, in $work/NAME/MACHINE; $pid is its process.
start() {
    local machine=$1 name=$2 inside=""
    shift 2
    mkdir -p "$work/$name/one" "$work/$name/two"
    local command="exec '$bin/caravan' run $work/p.yaml --machine $machine --key $work/$machine.key --set run=$work/$name/$machine --set optim.on=one,two $*"
    [ $machine = two ] && [ -n "$in_two" ] && inside="$in_two"
    if [ -n "$inside" ]; then
        $inside "mount -t tmpfs none $work/$name/one && $command" 2>>"$work/$name.two.err" &
    elif [ $machine = one ] && [ -n "$in_one" ]; then
        $in_one sh -c "$command" 2>>"$work/$name.one.err" &
    else
        sh -c "$command" 2>>"$work/$name.$machine.err" &
    fi
    pid=$!
}
# both NAME OPTION...: starts both; $first and $second are their processes.
both() {
    start one "$@"
    first=$pid
    start two "$@"
    second=$pid
}
# same NAME TEXT: both machines end well, and the run has each step once and ends as one process does.
same() {
    hold $steps
    wait $first || fail "$1: one: $(cat "$work/$1".*.err)"
    wait $second || fail "$1: two: $(cat "$work/$1".*.err)"
    check_steps "$1/one" $steps
    [ "$(files_of "$1/one")" = "$want" ] || fail "$2: $(files_of "$1/one") instead of $want"
    [ -z "$(find "$work/$1/two/checkpoints" -type f)" ] || fail "$1: machine two has written checkpoints"
    wait_until 60 nothing_left "$1" || fail "$1: a process is left: $(pgrep -fa "$work/$1/.*/nodes/")"
}
# rank_of NAME RANK: prints its process; rank 0 is on one, and the last one on two.
rank_of() { pgrep -f "^[^ ]*caravan-optim --node=$work/$1/.*/nodes/$2 "; }
another() { now=$(rank_of "$1" "$2") && [ "$now" != "$3" ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
beyond() { [ "$(wc -l <"$work/$1/one/metrics.jsonl")" -gt "$2" ]; }
nothing_left() { ! pgrep -f "$work/$1/.*/nodes/" >/dev/null; }

both two-ranks
same two-ranks "a rank on each machine trains something else"
both four-ranks --set optim.ranks=2
same four-ranks "two ranks on each machine train something else"
[ -s "$work/four-ranks/two/nodes/optim-4" ] && [ -e "$work/four-ranks/one/nodes/optim-2" ] || fail "the ranks are elsewhere"

# Each rank is killed, and the one of the second machine is stopped: both come back, and the run goes on. Two more steps may
# be taken with each fault: the run cannot end before the last one, and a rank that is stopped is missed.
declare -A before
hold 1
both faults --set force.program="$work/gated.sh"
wait_for_step faults/one 1
shown() { [ -s "$work/top" ] || ! kill -0 $top 2>/dev/null; }
for _ in 1 2 3; do # again where one of the two is paused for 5 s
    $in_one "$bin/caravan" top "$work/p.yaml" --machine one --key "$work/one.key" --set run="$work/faults/one" --set optim.on=one,two --set force.program="$work/gated.sh" >"$work/top" 2>"$work/top.err" &
    top=$!
    wait_until 60 shown || fail "top shows nothing: $(cat "$work/top.err")"
    [ ! -s "$work/top" ] || break
done
for fault in "KILL optim-2" "KILL optim" "STOP optim-2"; do
    for each in optim optim-2; do
        wait_until 60 rank_of faults $each >/dev/null || fail "$each is not there: $(cat "$work"/faults.*.err)"
        before[$each]=$(rank_of faults $each)
    done
    lines=$(wc -l <"$work/faults/one/metrics.jsonl")
    hold $((lines + 1))
    kill -${fault% *} "${before[${fault#* }]}"
    hold $((lines + 2))
    for each in optim optim-2; do
        wait_until 90 another faults $each "${before[$each]}" || fail "$each did not start again after SIG$fault: $(cat "$work"/faults.*.err)"
    done
    wait_until 90 beyond faults "$lines" || fail "no step after SIG$fault: $(cat "$work"/faults.*.err)"
done
same faults "other weights after killed and stopped ranks"
wait $top || fail "who watches the run has lost it: $(cat "$work/top.err")"
grep -q "rank 1 on two has done nothing for 5 s, .* its process is silent" "$work/faults.one.err" || fail "rank 1 was not named: $(cat "$work/faults.one.err")"

# The second machine's supervisor is killed, with all its processes, and starts again; so is the first one's.
hold $((steps - 1))
both killed --set force.program="$work/gated.sh"
wait_for_step killed/one 2
kill -KILL $second
wait $second 2>/dev/null || true
wait_for_line "$work/killed.one.err" "two is disconnected"
start two killed --set force.program="$work/gated.sh"
second=$pid
wait_for_step killed/one 5
kill -KILL $first
wait $first 2>/dev/null || true
start one killed --set force.program="$work/gated.sh"
first=$pid
same killed "other weights after killed supervisors"

# The network is cut until each machine has missed the other one.
if [ -n "$in_one" ]; then
    hold $((steps - 1))
    both cut --set force.program="$work/gated.sh"
    wait_for_step cut/one 2
    for each in optim optim-2; do before[$each]=$(rank_of cut $each) || fail "$each is not there"; done
    ip -n $space-1 link set $$-1 down
    hold $steps # rank 0 misses the other one when it has a step to take
    wait_for_line "$work/cut.one.err" "two is disconnected"
    wait_for_line "$work/cut.two.err" "one is disconnected"
    for each in optim optim-2; do
        wait_until 60 gone "${before[$each]}" || fail "$each has not missed the other rank: $(cat "$work"/cut.*.err)"
    done
    ip -n $space-1 link set $$-1 up
    same cut "other weights after the network was cut"
fi

# Ctrl-C on one machine: the other one waits for it. `caravan stop` ends both; the same command goes on.
hold $((steps - 1))
both stopped --set force.program="$work/gated.sh"
wait_for_step stopped/one 1
kill -TERM $second
ends_with 75 $second "$work/stopped.two.err"
wait_for_line "$work/stopped.one.err" "two has stopped; waiting for it"
wait_for_line "$work/stopped.one.err" "optim ended as it was asked to; starting it again" # maybe after the other machine
start two stopped --set force.program="$work/gated.sh"
second=$pid
wait_for_step stopped/one 3
kill -TERM $first
ends_with 75 $first "$work/stopped.one.err"
start one stopped --set force.program="$work/gated.sh"
first=$pid
wait_for_step stopped/one 5
stop() { $in_one "$bin/caravan" stop "$work/p.yaml" --machine one --key "$work/one.key" --set run="$work/stopped/one" --set optim.on=one,two --set force.program="$work/gated.sh" 2>"$work/stop.err"; }
stop || stop || fail "stop: $(cat "$work/stop.err")" # it does not find supervisors that are paused for 5 s
ends_with 75 $first "$work/stopped.one.err"
ends_with 75 $second "$work/stopped.two.err"
wait_until 60 nothing_left stopped || fail "a process is left after a stop: $(pgrep -fa "$work/stopped/.*/nodes/")"
both stopped
same stopped "other weights after stops"
