# The memory of optim over many groups: 20,000 groups of one text completion with advantage 0, so that time goes into
# messages and bookkeeping. Prints optim's resident memory after 1,000 and after all groups; fails above 5 MB of growth.
set -eu
run=
bin=${BUILD:-build}/bin
case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
groups=${GROUPS_IN_ALL:-20000} work=$(mktemp -d)
trap 'kill $run 2>/dev/null || true; wait; rm -rf "$work"' EXIT

"$bin/caravan" make-demo-data "$work/data" --clips 2 --held-out 1 --examples 64
"$bin/caravan" init "$work/model" --shape pipelines/demo/shape.json --train-tokenizer "$work/data/text.txt" --seed 3
seq 1000 | sed 's/.*/{"id": "s&", "prompt": {"messages": [{"role": "user", "content": "What is &?"}], "problem_type": "numerical", "solution": "<answer>1<\/answer>"}}/' >"$work/data.jsonl"
cat >"$work/complete.sh" <<'END'
#!/bin/sh
exec sed -u 's/}$/,"completions":[{"text":"a","finish":"eos"}],"rewards":{"accuracy":[0],"format":[0],"total":[0]},"advantages":[0]}/'
END
chmod +x "$work/complete.sh"
cat >"$work/p.yaml" <<END
run: run
model: model
precision: float32
threads: 1
stages:
  - source: {data: data.jsonl, template: none, group_size: 1, groups_per_step: 50, epochs: $((groups / 1000)), max_staleness: 1}
  - complete: {program: ./complete.sh}
  - optim: {lr: 0, ema_every: 0, save_every: 1000000}
END

"$bin/caravan" run "$work/p.yaml" 2>"$work/log" &
run=$!

# resident KILOBYTES of the optim process of this run
resident() {
    pid=$(pgrep -P "$run" -f caravan-optim | head -1)
    [ -n "$pid" ] && awk '/VmRSS/ { print $2 }' "/proc/$pid/status"
}

first= last=
while kill -0 $run 2>/dev/null; do
    steps=$(cat "$work/run/metrics.jsonl" 2>/dev/null | wc -l)
    now=$(resident 2>/dev/null || true)
    [ -z "$first" ] && [ "$steps" -ge 20 ] && first=$now
    [ -n "$now" ] && [ "$steps" -lt $((groups / 50)) ] && last=$now
    sleep 0.2
done
wait $run || { cat "$work/log" >&2; exit 1; }
grep "done:" "$work/log"
echo "optim's resident memory: $first KB after 1,000 groups, $last KB before the last of $groups"
[ $((last - first)) -le 5120 ]
