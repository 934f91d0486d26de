#!/usr/bin/env bash
# caravan view beside a large run, of VIEW_GROUPS (1,000,000) groups and 64 replicas: for each route the median and the 99th
# percentile of VIEW_ASKED (200) requests by the clock and of the viewer's processor time, how long the first one took, and how
# long another request waited meanwhile at most; and the processor time that a page takes which somebody looks at. Then runs of
# 64 processes (tests/bench/flow_stage.c), without a page and with one in turn: groups a second, and the viewer's processor time.
set -eu
bin=${BIN:-$PWD/build/bin} count=${VIEW_GROUPS:-1000000} asked=${VIEW_ASKED:-200} work=$(mktemp -d) viewer=
tests=${VIEW_TESTS:-$(dirname "$bin")/tests/bench}
trap 'kill $viewer 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# pipeline OPTIONS: the stages of a pipeline with 64 replicas; OPTIONS of source.
pipeline() {
    cat <<END
name: view
run: run
model: model
stages:
  - source: {data: data.jsonl, format: caravan, template: none, $1}
  - frames: {replicas: 2}
  - rollout: {replicas: 48}
  - refscore: {replicas: 8}
  - reward: {replicas: 4, method: grpo}
  - optim: {ema_every: 0, schedule: constant}
END
}

# view OPERAND...: starts a viewer, $viewer, with the $port and the $token of its address.
view() {
    : >"$work/view.err"
    "$bin/caravan" view --listen 127.0.0.1:0 "$@" 2>"$work/view.err" &
    viewer=$!
    until grep -q token= "$work/view.err"; do kill -0 $viewer && sleep 0.1; done
    port=$(sed -n 's|^caravan: http://127\.0\.0\.1:\([0-9]*\)/.*|\1|p' "$work/view.err")
    token=$(sed -n 's/^caravan: http.*token=//p' "$work/view.err")
}

load() { cut -d' ' -f1 /proc/loadavg; }

mkdir -p "$work/run" "$work/bin" "$work/model"
pipeline 'groups_per_step: 10' >"$work/run/pipeline.yaml"
"$tests/view_bench" make "$work/run" "$count"
started=$(date +%s%N)
view "$work/run" again="$work/run/store"
echo "== the page: a run of $count groups, on $(nproc) processors, load $(load); ready after $((($(date +%s%N) - started) / 1000000)) ms"
"$tests/view_bench" ask $viewer "$port" "$token" "$asked" /api/live /api/run /api/metrics '/api/metrics?from=100&to=200' /api/map \
    '/api/map?where=group.right+%3C+2' /api/groups '/api/groups?sort=-reward&where=group.right+%3C+2' \
    '/api/groups?where=accuracy+%3D+0&limit=50' '/api/groups?text=colour' /api/trace '/api/trace?from=1764000100&to=1764000110' \
    '/trace.json?from=1764000100&to=1764000110' /api/quarantine /api/group/e0-000017 '/api/compare?a=run&b=again' \
    '/api/compare?a=run&b=again&cell=better'
"$tests/view_bench" watch $viewer "$port" "$token" 15
kill $viewer
rm -rf "$work/run"

echo '{}' >"$work/data.jsonl"
cp "$bin/caravan" "$work/bin/" # it looks for the stages beside itself
for stage in source frames rollout refscore reward optim; do ln -s "$tests/flow_stage" "$work/bin/caravan-$stage"; done
pipeline 'limit: 1000, groups_per_step: 50, max_staleness: 1' >"$work/p.yaml"
for page in without with without with; do
    rm -rf "$work/run"
    FLOW_STORE=1 FLOW_PAUSE=1000 "$work/bin/caravan" run "$work/p.yaml" >/dev/null 2>"$work/log" &
    run=$!
    if [ $page = with ]; then
        until [ -e "$work/run/metrics.prom" ]; do kill -0 $run && sleep 0.1; done
        view "$work/run"
        "$tests/view_bench" watch $viewer "$port" "$token" 5
    fi
    wait $run || { tail -3 "$work/log" >&2; exit 1; }
    [ $page = without ] || kill $viewer
    echo "a run of 64 processes $page a page, load $(load): $(sed -n 's/^flow: \(.*groups\/s\).*/\1/p' "$work/run/logs/optim.log")"
done
