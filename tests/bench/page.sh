#!/usr/bin/env bash
# What the page costs a run. A training of the miniature's model with and without `caravan view` beside it, in turn, BENCH_PAIRS (6)
# pairs of BENCH_STEPS (60) steps of four groups: seconds a step, processor time of all stages a step, and processor time of the
# page. A client asks it every two seconds for all that its overview shows, more than a browser does. Then what the run has written
# for the page: summaries, rows and samples in groups.lmdb, replicas in `times`, events.jsonl, as shares of its bytes and work.
set -euo pipefail
BIN=${BIN:-$PWD/build/bin}
pairs=${BENCH_PAIRS:-6} steps=${BENCH_STEPS:-60} bench=$(dirname "$BIN")/tests/bench/store_bench
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
client=''
trap 'kill $client $(cat "$work/viewer" 2>/dev/null) 2>/dev/null || true; rm -rf "$work"' EXIT
TIMEFORMAT='%R %U %S'
"$BIN/caravan" make-demo-data "$work/data" --clips 4 --held-out 1 --examples 64 2>/dev/null
"$BIN/caravan" init "$work/model" --shape pipelines/miniature/shape.json --train-tokenizer "$work/data/text.txt" --seed 3 2>/dev/null
# A random model is never right, so that every gradient is 0. A program gives other advantages.
cat >"$work/advantages" <<'END'
#!/bin/sh
exec sed -u 's/"advantages":\[[^]]*\]/"advantages":[1,-1,1,-1,1,-1,1,-1]/'
END
chmod +x "$work/advantages"
cat >"$work/p.yaml" <<END
name: page
run: run
model: model
seed: 5
stages:
  - source: {data: data/train.jsonl, format: video-r1, media_root: data, template: none, groups_per_step: 4, epochs: 1000, max_steps: $steps}
  - frames: {min_pixels: 3136, max_pixels: 3136}
  - rollout: {max_new_tokens: 48}
  - refscore: {}
  - reward: {method: care}
  - advantages: {program: ./advantages}
  - optim: {lr: 1.0e-5}
END

# ask PORT TOKEN PATH: a request as the page makes it.
ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf 'GET %s HTTP/1.1\r\nHost: localhost:%s\r\nCookie: caravan-%s=%s\r\nConnection: close\r\n\r\n' "$3" "$1" "$1" "$2" >&3
    cat <&3 >"$work/answer"
    exec 3>&-
    head -1 "$work/answer" | grep -q ' 200 ' || { head -c 300 "$work/answer" >&2; return 1; }
}

# watch NAME: starts the page of a run, and asks until it is killed.
watch() {
    local port token path
    until [ -f "$work/$1/pipeline.yaml" ]; do sleep 0.05; done
    "$BIN/caravan" view --listen 127.0.0.1:0 "$work/$1" 2>"$work/view.err" &
    echo $! >"$work/viewer"
    until grep -q token= "$work/view.err"; do sleep 0.05; done
    port=$(sed -n 's|^caravan: http://127\.0\.0\.1:\([0-9]*\)/.*|\1|p' "$work/view.err")
    token=$(sed -n 's/^caravan: http.*token=//p' "$work/view.err")
    while :; do
        for path in /api/live /api/metrics /api/map /api/quarantine '/api/groups?limit=200' '/api/groups?where=group.right+%3D+0&limit=0' \
            '/api/groups?where=group.truncated+%3E+0&limit=0' '/api/groups?where=group.named+%3E+0&limit=0'; do
            ask "$port" "$token" "$path"
        done
        echo >>"$work/asked"
        sleep 2
    done
}

# train NAME PAGE: a run; a line of its figures to the file `without` or `with`: seconds a step after the first five, processor
# seconds of all its processes a step, processor seconds of the page a step.
train() {
    local page=0 seconds viewer
    rm -rf "${work:?}/run" "$work/viewer" "$work/asked"
    if [ "$1" = with ]; then
        watch run 2>"$work/watch.err" &
        client=$!
    fi
    { time "$BIN/caravan" run "$work/p.yaml" >"$work/log" 2>&1; } 2>"$work/time" || { tail -3 "$work/log" >&2; exit 1; }
    [ "$(wc -l <"$work/run/metrics.jsonl")" = "$steps" ] || { tail -3 "$work/log" >&2; exit 1; }
    if [ "$1" = with ]; then
        viewer=$(cat "$work/viewer")
        if ! kill -0 "$client" || [ "$(wc -l <"$work/asked")" -lt 2 ]; then
            echo "nobody asked the page: $(cat "$work/watch.err")" >&2
            exit 1
        fi
        kill "$client"
        page=$(awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / hz }' "/proc/$viewer/stat")
        kill "$viewer"
        rm "$work/viewer"
        wait "$client" 2>/dev/null || true
    fi
    seconds=$(awk '{ match($0, /"time": [0-9.]+/); now = substr($0, RSTART + 8, RLENGTH - 8) } NR == 5 { from = now }
        END { print (now - from) / (NR - 5) }' "$work/run/metrics.jsonl")
    awk -v seconds="$seconds" -v page="$page" -v steps="$steps" '{ print seconds, ($2 + $3) / steps, page / steps }' "$work/time" >>"$work/$1"
}

echo "== a run with a page: $pairs pairs of $steps steps, load $(cut -d' ' -f1-3 /proc/loadavg)"
for pair in $(seq "$pairs"); do
    if [ $((pair % 2)) = 1 ]; then train without; train with; else train with; train without; fi
done
paste "$work/without" "$work/with" | awk '
    function median(list, n,   i, k, x) {
        for (i = 2; i <= n; i++) { x = list[i]; for (k = i - 1; k && list[k] > x; k--) list[k + 1] = list[k]; list[k + 1] = x }
        return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
    }
    { time[NR] = 100 * ($4 / $1 - 1); work[NR] = 100 * ($5 / $2 - 1); share[NR] = 100 * $6 / $5; core[NR] = 100 * $6 / $4
      seconds[NR] = $1; processor[NR] = $2 }
    END {
        middle = median(time, NR); printf "  without %.3f s and %.3f processor-s a step; with a page: time %+.1f %% (pairs from %+.1f to %+.1f)", median(seconds, NR), median(processor, NR), middle, time[1], time[NR]
        middle = median(work, NR); printf ", processor time of the stages %+.1f %% (%+.1f to %+.1f)\n", middle, work[1], work[NR]
        printf "  the page itself: %.2f %% of the run'"'"'s processor time, %.2f %% of a core (asked: under 1 %%)\n", median(share, NR), median(core, NR)
    }'
echo "  load at the end $(cut -d' ' -f1-3 /proc/loadavg)"

# What the last run has written for the page.
run=$work/run groups=$((4 * steps))
"$BIN/caravan" groups export "$run" | "$bench" save "$work/bench" >"$work/saved"
"$bench" tables "$run/store" >"$work/tables"
"$bench" events "$work/events" 2000 >"$work/event"
events=$(wc -l <"$run/events.jsonl") event_bytes=$(wc -c <"$run/events.jsonl") bytes=$(du -sb "$run" | cut -f1)
processor=$(awk '{ n++; list[n] = $2 } END { print list[int((n + 1) / 2)] }' <(sort -n -k2 "$work/without"))
paste "$work/saved" "$work/tables" "$work/event" | awk -v groups="$groups" -v events="$events" -v event_bytes="$event_bytes" -v bytes="$bytes" -v processor="$processor" -v steps="$steps" '{
    work = ($3 * groups + $8 * events) * 1e-6 / (processor * steps)
    printf "  kept for the page: %.1f us a group, %.1f us an event (%d of them): %.3f %% of the run'"'"'s processor time (asked: at most 1 %%)\n", $3, $8, events, 100 * work
    printf "  bytes for the page: %.0f of %.0f a group in groups.lmdb (%.1f %%), %d of events.jsonl; of the whole run, %.0f bytes, %.2f %% (asked: at most 1 %%)\n",
        $5, $4, 100 * $5 / $4, event_bytes, bytes, 100 * ($5 * groups + event_bytes) / bytes }'
