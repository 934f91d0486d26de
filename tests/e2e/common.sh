# Functions of the end-to-end scripts, which source this file. BIN is the directory of the programs; $work is a temporary
# directory that is removed at exit, when what a script that failed has started is stopped.
set -euo pipefail
bin=${BIN:-$PWD/build/bin}
work=$(mktemp -d)
trap 'stop_jobs; rm -rf "$work"' EXIT
trap 'fail "not ended in time; the last lines: $(tail -n 3 "$work"/*.err 2>&1)"' TERM
small="--min-pixels 3136 --max-pixels 3136"

# Stops what the script has started in the background, and waits for it, up to 20 s.
stop_jobs() {
    kill $(jobs -p) 2>/dev/null || return 0
    for _ in $(seq 200); do
        [ -n "$(jobs -pr)" ] || return 0
        sleep 0.1
    done
    kill -9 $(jobs -p) 2>/dev/null || true
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# wait_until SECONDS COMMAND...: runs the command again and again until it succeeds; fails after so many seconds.
wait_until() {
    local last=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -le $last ] || return 1
        sleep 0.05
    done
}

# wait_for_line FILE PATTERN: waits until the file has such a line.
wait_for_line() {
    wait_until 120 grep -qs -e "$2" "$1" || fail "no line like '$2' in: $(cat "$1")"
}

# two_machines NETWORK COMMAND: two network namespaces with a link, where they can be made and COMMAND works in one. $one
# and $two are their addresses; $in_one and $in_two run a command there. Otherwise both are this machine, and $in_one is "".
two_machines() {
    space=caravan-test-$$ one=127.0.0.1 two=127.0.0.1 in_one="" in_two=""
    if ! { ip netns add $space-1 && ip netns add $space-2 && ip netns exec $space-1 $2 &&
        ip link add $$-1 netns $space-1 type veth peer name $$-2 netns $space-2; } 2>/dev/null; then
        ip netns del $space-1 2>/dev/null || true
        ip netns del $space-2 2>/dev/null || true
        echo "no network namespaces here: two ports of one machine, whose network is not cut"
        return 0
    fi
    trap 'ip netns del '$space'-1; ip netns del '$space'-2; rm -rf "$work"' EXIT
    one=$1.1 two=$1.2 in_one="ip netns exec $space-1" in_two="ip netns exec $space-2"
    ip -n $space-1 addr add $one/24 dev $$-1 && ip -n $space-1 link set $$-1 up && ip -n $space-1 link set lo up
    ip -n $space-2 addr add $two/24 dev $$-2 && ip -n $space-2 link set $$-2 up && ip -n $space-2 link set lo up
}

# take_ports: sets $port to the first of 1,024 ports that are this script's until it ends, below those that the kernel gives to
# connections.
take_ports() {
    local slot
    for slot in $(seq 0 21); do
        { exec {ports_lock}>"${TMPDIR:-/tmp}/caravan-ports-$slot"; } 2>/dev/null || continue # another user's
        port=$((10000 + slot * 1024))
        ! flock -n "$ports_lock" || return 0
        exec {ports_lock}>&-
    done
    fail "other tests have all ports"
}

# has_lines FILE COUNT: whether the file has so many lines at least.
has_lines() { [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }

# make_data [CLIPS]: writes clips with questions to $work/data.
make_data() {
    "$bin/caravan" make-demo-data "$work/data" --clips "${1:-3}" --held-out 1 --examples 64
}

# make_questions COUNT: writes groups without a medium, for pipelines without a model, to $work/data.jsonl.
make_questions() {
    for number in $(seq "$1"); do
        printf '{"id":"%s","prompt":{"messages":[],"problem_type":"OCR","solution":"<answer>x</answer>"}}\n' $number
    done >"$work/data.jsonl"
}

# make_numbers COUNT: writes groups whose prompts are text, for a model, to $work/data.jsonl.
make_numbers() {
    for i in $(seq "$1"); do
        echo "{\"id\": \"$i\", \"prompt\": {\"messages\": [{\"role\": \"user\", \"content\": \"What is $i?\"}], \"problem_type\": \"numerical\", \"solution\": \"<answer>1</answer>\"}}"
    done >"$work/data.jsonl"
}

# make_program NAME LINES: writes the shell script $work/NAME.sh, a stage's program. sed's command `complete` gives a group
# all that optim needs; `force` sets its advantages, because those of a random model are all zero.
complete='s/}$/,"completions":[{"text":"a","finish":"eos"}],"rewards":{"accuracy":[0],"format":[0],"total":[0]},"advantages":[1]}/'
force='s/"advantages":\[[^]]*\]/"advantages":[1.0,-1.0]/'
make_program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/$1.sh"
    chmod +x "$work/$1.sh"
}

# Writes a small model with random weights to $work/model.
make_model() {
    "$bin/caravan" init "$work/model" --shape pipelines/miniature/shape.json --train-tokenizer "$work/data/text.txt" --seed 3
}

# Writes a model of one layer, for tests of optim alone, to $work/model.
make_tiny_model() {
    echo "What is it? It is a red square, and then it is a blue circle." >"$work/text.txt"
    cat >"$work/shape.json" <<'END'
{"model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
 "vocab_size": 320, "tie_word_embeddings": true, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
 "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [0]}}
END
    "$bin/caravan" init "$work/model" --shape "$work/shape.json" --train-tokenizer "$work/text.txt" --seed 3
}

# ends_with CODE PID FILE: waits for the process, which must exit with CODE; FILE has its standard error.
ends_with() {
    got=0
    wait "$2" || got=$?
    [ "$got" = "$1" ] || fail "exit $got instead of $1: $(cat "$3")"
}

# expect CODE PATTERN COMMAND...: the command must exit with CODE, and a line of its standard error must match PATTERN.
expect() {
    code=$1 pattern=$2
    shift 2
    got=0
    "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
    [ "$got" = "$code" ] || fail "$*: exit $got instead of $code: $(cat "$work/err")"
    grep -q -e "$pattern" "$work/err" || fail "$*: no line matches '$pattern' in: $(cat "$work/err")"
}
