#!/usr/bin/env bash
# Weights from one network namespace to another over a veth with CURVE, beside iperf3 without encryption where that is
# installed. The files are in memory. BENCH_WEIGHTS (1000) is the file's size in MB.
set -euo pipefail
megabytes=${BENCH_WEIGHTS:-1000} count=3
bench=${WEIGHTS_BENCH:-$(dirname "$BIN")/tests/bench/weights_bench}
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
one=caravan-bench-$$-1 two=caravan-bench-$$-2
trap 'ip netns del $one 2>/dev/null; ip netns del $two 2>/dev/null; rm -rf "$work"' EXIT
if ! ip netns add $one 2>/dev/null || ! ip netns add $two 2>/dev/null ||
    ! ip link add b$$-1 netns $one type veth peer name b$$-2 netns $two 2>/dev/null; then
    echo "== weights: no network namespaces here"
    exit 0
fi
ip -n $one addr add 10.78.0.1/24 dev b$$-1
ip -n $two addr add 10.78.0.2/24 dev b$$-2
for space in $one $two; do ip -n $space link set lo up; done
ip -n $one link set b$$-1 up
ip -n $two link set b$$-2 up

key_one=$("$BIN/caravan" keygen "$work/one.key") key_two=$("$BIN/caravan" keygen "$work/two.key")
# config STAGE MACHINE ADDRESS: the node config of a process.
config() {
    printf '%s\n' "caravan-wiring 1" "run bench" "folder $work" "stage $1" "replica 1" "machine $2" "last-stage optim" \
        "secret $work/$2.key" "listen tcp://$3:5600" "desk optim 1 one $key_one tcp://10.78.0.1:5600" \
        "desk rollout 1 two $key_two tcp://10.78.0.2:5600" >"$work/$1"
}
config optim one 10.78.0.1
config rollout two 10.78.0.2
mkdir "$work/copies"
head -c "${megabytes}000000" /dev/zero >"$work/weights"

ip netns exec $one timeout 300 "$bench" "$work/optim" serve "$work/weights" >"$work/served" &
server=$!
ip netns exec $two timeout 300 "$bench" "$work/rollout" fetch "$work/copies" "${megabytes}000000" $count >"$work/fetched"
wait $server
read -r seconds client <"$work/fetched"
read -r optim <"$work/served"
echo "== weights: $count times $megabytes MB over a veth with CURVE"
awk -v mb="$megabytes" -v n=$count -v s="$seconds" -v client="$client" -v optim="$optim" 'BEGIN {
    printf "  %.2f GB/s; processor seconds a GB: optim %.2f, client %.2f\n", mb / 1000 / s,
        optim / (n + 1) / mb * 1000, client / (n + 1) / mb * 1000 }'
if command -v iperf3 >/dev/null; then
    ip netns exec $one iperf3 -s -1 >/dev/null &
    sleep 0.5
    ip netns exec $two iperf3 -c 10.78.0.1 -R -t 3 -f g | awk '/receiver/ { printf "  iperf3, without encryption: %.2f GB/s\n", $7 / 8 }'
    wait
else
    echo "  iperf3 is not installed"
fi
