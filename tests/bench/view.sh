#!/usr/bin/env bash
# caravan view over a store of a million groups (VIEW_GROUPS=N): how long its routes take, the median and the 99th percentile of
# VIEW_ASKED=200 requests each, and the processor time that a page takes which asks every two seconds.
set -eu
bin=${BIN:-$PWD/build/bin} count=${VIEW_GROUPS:-1000000} asked=${VIEW_ASKED:-200} work=$(mktemp -d)
trap 'kill $viewer 2>/dev/null || true; rm -rf "$work"' EXIT
echo "== the page: a store of $count groups"
LC_ALL=C awk -v count="$count" 'BEGIN {
    for (i = 0; i < count; i++)
        printf "{\"id\":\"e0-%07d\",\"sample_id\":\"s%d\",\"prompt\":{\"messages\":[],\"question\":\"Which colour?\",\"problem_type\":\"multiple choice\",\"solution\":\"<answer>B</answer>\"},\"requires\":{\"policy\":0,\"reference\":0,\"exact\":0,\"order\":%d},\"completions\":[{\"text\":\"<think>t</think><answer>B</answer>\"},{\"text\":\"<think>t</think><answer>%s</answer>\"}],\"trained\":{\"step\":%d},\"times\":{\"rollout\":[%d.25,%d.5]}}\n", i, i % 50000, i, i % 3 ? "A" : "B", i / 100 + 1, 1764000000 + i / 30, 1764000000 + i / 30
}' | "$bin/caravan-reward" --stdio --method grpo --store "$work/store" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
"$bin/caravan" view --listen 127.0.0.1:0 "$work/store" 2>"$work/view.err" &
viewer=$!
until grep -q token= "$work/view.err"; do kill -0 $viewer && sleep 0.1; done
port=$(sed -n 's|^caravan: http://127\.0\.0\.1:\([0-9]*\)/.*|\1|p' "$work/view.err")
token=$(sed -n 's/^caravan: http.*token=//p' "$work/view.err")

ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET %s HTTP/1.1\r\nHost: localhost:%s\r\nCookie: caravan-%s=%s\r\nConnection: close\r\n\r\n' "$1" "$port" "$port" "$token" >&3
    cat <&3 >"$work/answer"
    exec 3>&-
    head -1 "$work/answer" | grep -q ' 200 ' || { head -c 300 "$work/answer" >&2; exit 1; }
}

ticks() { awk '{ print $14 + $15 }' /proc/$viewer/stat; }

for path in /api/run /api/live /api/metrics /api/map '/api/groups' '/api/groups?sort=-reward&where=group.right+%3C+2' \
    '/api/groups?where=accuracy+%3D+0&limit=50' /api/trace '/api/trace?from=1764000100&to=1764000110' /api/quarantine /api/group/e0-0000017; do
    ask "$path"
    for _ in $(seq "$asked"); do
        start=${EPOCHREALTIME/[.,]/}
        ask "$path"
        echo $((${EPOCHREALTIME/[.,]/} - start))
    done | sort -n | awk -v path="$path" '{ us[NR] = $1 } END { printf "%-52s %6.1f ms, 99th percentile %6.1f ms\n", path, us[int((NR + 1) / 2)] / 1e3, us[int(NR * 0.99 + 0.5)] / 1e3 }'
done
before=$(ticks)
for _ in 1 2 3 4 5 6 7 8 9 10; do
    ask /api/live
    sleep 2
done
awk -v before="$before" -v after="$(ticks)" -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "a page that asks every 2 s: %.2f %% of a core\n", (after - before) / hz / 20 * 100 }'
