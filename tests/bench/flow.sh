#!/usr/bin/env bash
# What it costs to pass a group on: groups of 8 x 768 tokens (a prompt of 1,174) through six stages that do nothing else
# (tests/bench/flow_stage.c), then the same with each stage storing its section; then how much of a core each process takes
# while 16 rollouts sleep for half a second over each group. The run's directory is in memory.
# BENCH_FLOW (2000) is the number of groups.
set -euo pipefail
groups=${BENCH_FLOW:-2000}
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT

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

rm -rf "$work/run"
FLOW_PAUSE=500 "$work/bin/caravan" run "$work/p.yaml" --set rollout.replicas=16 --set source.limit=500 2>"$work/log" &
pid=$! ticks=0 began=$(date +%s%N)
while latest=$(ticks_of $pid) && [ -n "$latest" ]; do ticks=$latest; sleep 0.2; done
wait $pid || { tail -3 "$work/log" >&2; exit 1; }
echo "== flow: 500 groups, 16 rollouts that take 500 ms for a group"
awk -v seconds="$(($(date +%s%N) - began))e-9" -v supervisor="$ticks" '
    /^flow: .* s$/ { n = split(FILENAME, path, "/"); sub(".log", "", path[n]); printf "  %-10s %5.1f %% of a core\n", path[n], 100 * $2 / seconds }
    END { printf "  supervisor %5.1f %% of a core\n  %.1f groups/s\n", supervisor / seconds, 500 / seconds }' "$work"/run/logs/{source,frames,rollout,optim}.log
