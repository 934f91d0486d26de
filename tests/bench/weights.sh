#!/usr/bin/env bash
# Weights from one network namespace to another over a veth with CURVE, beside iperf3 without encryption where that is
# installed. The files are in memory. BENCH_WEIGHTS (1000) is the file's size in MB. Then what travels of each version in
# runs of 8 steps with rollout in the other namespace.
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
    printf '%s\n' "caravan-node 1" "run bench" "run-dir $work" "stage $1" "replica 1" "machine $2" "last-stage optim" \
        "secret $work/$2.key" "listen tcp://$3:5600" "endpoint optim 1 one $key_one tcp://10.78.0.1:5600" \
        "endpoint rollout 1 two $key_two tcp://10.78.0.2:5600" >"$work/$1"
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

# Runs of a small model in both precisions, at the learning rate of fine-tuning and at that of training from random weights.
"$BIN/caravan" make-demo-data "$work/data" --clips 2 --held-out 1 --examples 64
"$BIN/caravan" init "$work/model" --shape pipelines/miniature/shape.json --train-tokenizer "$work/data/text.txt" --seed 3
printf '#!/bin/sh\nexec sed -u %s\n' "'s/\"advantages\":\[[^]]*\]/\"advantages\":[1.0,-1.0]/'" >"$work/force.sh"
chmod +x "$work/force.sh"
cat >"$work/p.yaml" <<END
name: weights
run: run
model: model
seed: 7
threads: 1
stages:
  - source: {data: data/train.jsonl, format: video-r1, media_root: data, template: none, group_size: 2, groups_per_step: 2, epochs: 4, limit: 4}
  - frames: {min_pixels: 3136, max_pixels: 3136}
  - rollout: {max_new_tokens: 8, on: two}
  - refscore: {}
  - reward: {method: care}
  - force: {program: ./force.sh}
  - optim: {schedule: constant}
machines:
  one: {address: 10.78.0.1, port: 5610, key: "$key_one"}
  two: {address: 10.78.0.2, port: 5610, key: "$key_two"}
END
echo "== weights: 8 steps of a small model, rollout in the other namespace"
mkdir "$work/one"
for precision in bfloat16 float32; do
    for lr in 1.0e-6 1.0e-3; do
        rm -rf "$work/one/run" "$work/two-run"
        options="--set precision=$precision --set optim.lr=$lr"
        ip netns exec $one timeout 120 "$BIN/caravan" run "$work/p.yaml" --machine one --key "$work/one.key" $options --set run="$work/one/run" 2>"$work/log" &
        # The first one's directory is hidden from the second.
        CARAVAN_DEBUG=1 ip netns exec $two unshare -m sh -c "mount -t tmpfs none $work/one && exec timeout 120 $BIN/caravan run $work/p.yaml --machine two --key $work/two.key $options --set run=$work/two-run" 2>"$work/log-two" ||
            { tail -3 "$work/log-two" >&2; exit 1; }
        wait
        printf '  %s, lr %s: ' $precision $lr
        sed -n 's/.*a difference of \([0-9]*\) bytes for \([0-9]*\)/\1 \2/p' "$work/two-run/logs/rollout.log" |
            awk '{ sum += $1; whole = $2 } END { if (NR) printf "%d of %d bytes a step (mean of %d); ", sum / NR, whole, NR; else printf "whole files; " }'
        for version in 7 8; do # 64 times, as the file of a larger model
            for _ in $(seq 64); do cat "$work/one/run/weights/policy-00000$version.safetensors"; done >"$work/large-$version"
        done
        "$bench" difference "$work/large-7" "$work/large-8" | awk '{
            printf "%.2f %% of %d MB; processor seconds a GB: made %.2f, applied %.2f\n", 100 * $2 / $1, $1 / 1e6, $3, $4 }'
    done
done
