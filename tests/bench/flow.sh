#!/usr/bin/env bash
# What it costs to pass a group on: groups of 8 x 768 tokens (a prompt of 1,174) through six stages that do nothing else
# (tests/bench/flow_stage.c), then the same with each stage storing its section; then how much of a core each process takes
# while 16 rollouts sleep for half a second over each group, on one machine and on four (network namespaces with CURVE).
# The run's directory is in memory.
# BENCH_FLOW (2000) is the number of groups.
set -euo pipefail
groups=${BENCH_FLOW:-2000}
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
space=flow-$$ started=()
cleanup() {
    kill "${started[@]}" 2>/dev/null || true
    for k in 1 2 3 4; do ip netns del $space-$k 2>/dev/null || true; done
    ip link del $space 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

mkdir -p "$work/bin" "$work/model"
echo '{}' >"$work/data.jsonl"
cp "$BIN/caravan" "$work/bin/" # it looks for the stages beside itself
for stage in source frames rollout refscore reward optim; do
    ln -s "${FLOW_STAGE:-$(dirname "$BIN")/tests/bench/flow_stage}" "$work/bin/caravan-$stage"
done
cat >"$work/p.yaml" <<END
name: flow
run: run
model: model
stages:
  - source: {data: data.jsonl, format: caravan, template: none, limit: $groups, groups_per_step: 50, max_staleness: 1}
  - frames: {}
  - rollout: {}
  - refscore: {}
  - reward: {method: grpo}
  - optim: {ema_every: 0, schedule: constant}
END

# flow TITLE: a run, and its figures.
flow() {
    rm -rf "$work/run"
    timeout -k 10 600 "$work/bin/caravan" run "$work/p.yaml" 2>"$work/log" || { tail -3 "$work/log" >&2; exit 1; }
    grep -q "$groups groups trained" "$work/log" || { cat "$work/log" >&2; exit 1; }
    echo "== flow: $groups groups of 8 x 768 tokens, $1"
    awk -v groups="$groups" '/^flow: .* s$/ { n = split(FILENAME, path, "/"); sub(".log", "", path[n]); all += $2; stages++
            printf "  %-9s %6.2f processor-ms a group\n", path[n], 1000 * $2 / groups }
        /^flow: .*groups/ { rate = $2 }
        END { printf "  %.0f groups/s, %.2f processor-ms a group and stage\n", rate, 1000 * all / groups / stages }' "$work"/run/logs/*.log
}

flow "passed on"
FLOW_STORE=1 flow "stored and passed on"

# The processor time of a process, in hundredths of a second.
ticks_of() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat" 2>/dev/null; }

# shares SECONDS PLACE...: what part of a core each process took, in the runs of these directories, and each supervisor, whose
# processor time is in PLACE/ticks.
shares() {
    seconds=$1
    shift
    for place in "$@"; do
        awk -v seconds="$seconds" '/^flow: .* s$/ { n = split(FILENAME, path, "/"); sub(".log", "", path[n]); printf "  %-12s %5.1f %% of a core\n", path[n], 100 * $2 / seconds }' \
            $(ls "$place"/logs/{source,frames,rollout,rollout-2,optim}.log 2>/dev/null)
        awk -v seconds="$seconds" -v name="${place##*/}" '{ printf "  %-12s %5.1f %% of a core\n", name == "run" ? "supervisor" : "on " name, $1 / seconds }' "$place/ticks"
    done
    awk -v seconds="$seconds" 'BEGIN { printf "  %.1f groups/s\n", 500 / seconds }'
}

# watch_over PID FILE: waits for a supervisor and writes its processor time.
watch_over() {
    local ticks=0 latest
    while latest=$(ticks_of "$1") && [ -n "$latest" ]; do
        ticks=$latest
        sleep 0.2
    done
    echo "$ticks" >"$2"
}

rm -rf "$work/run"
began=$(date +%s%N)
FLOW_PAUSE=500 "$work/bin/caravan" run "$work/p.yaml" --set rollout.replicas=16 --set source.limit=500 2>"$work/log" &
pid=$!
watch_over $pid "$work/ticks"
wait $pid || { tail -3 "$work/log" >&2; exit 1; }
mv "$work/ticks" "$work/run/ticks"
echo "== flow: 500 groups, 16 rollouts that take 500 ms for a group"
shares "$(($(date +%s%N) - began))e-9" "$work/run"

ip link add $space type bridge 2>/dev/null && ip link set $space up || { echo "== flow: no network namespaces here"; exit 0; }
{
    sed 's/  - rollout: {}/  - rollout: {replicas: 4, on: "machine-[1-4]"}/' "$work/p.yaml"
    echo "machines:"
    for k in 1 2 3 4; do
        echo "  machine-$k: {address: 10.79.0.$k, port: 5700, key: \"$("$BIN/caravan" keygen "$work/$k.key")\"}"
    done
} >"$work/four.yaml"
for k in 1 2 3 4; do
    ip netns add $space-$k
    ip link add f$$-$k type veth peer name eth0 netns $space-$k
    ip link set f$$-$k master $space up
    ip -n $space-$k addr add 10.79.0.$k/24 dev eth0
    ip -n $space-$k link set eth0 up
    ip -n $space-$k link set lo up
done
began=$(date +%s%N)
for k in 1 2 3 4; do
    mkdir "$work/machine-$k"
    FLOW_PAUSE=500 ip netns exec $space-$k "$work/bin/caravan" run "$work/four.yaml" --machine machine-$k --key "$work/$k.key" \
        --set run="$work/machine-$k" --set source.limit=500 2>"$work/log-$k" &
    started+=($!)
    watch_over $! "$work/machine-$k/ticks" &
    watches[k]=$!
done
for k in 1 2 3 4; do
    wait "${started[k - 1]}" || { tail -3 "$work/log-$k" >&2; exit 1; }
    wait "${watches[k]}"
done
started=()
echo "== flow: the same on four machines of 4 rollouts each"
shares "$(($(date +%s%N) - began))e-9" "$work"/machine-[1-4]
