# What the end-to-end scripts share: . tests/e2e/common.sh. BIN names the programs; $work is a folder that goes at the end.
set -euo pipefail
bin=${BIN:-$PWD/build/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
small="--min-pixels 3136 --max-pixels 3136"

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# A few clips with questions in $work/data, a small random model in $work/model.
make_data() {
    "$bin/caravan" make-demo-data "$work/data" --clips "${1:-3}" --held-out 1 --examples 64
}
make_model() {
    "$bin/caravan" init "$work/model" --shape pipelines/demo/shape.json --train-tokenizer "$work/data/text.txt" --seed 3
}

# expect CODE PATTERN COMMAND...: the command ends with CODE, and one line of its standard error matches PATTERN.
expect() {
    code=$1 pattern=$2
    shift 2
    got=0
    "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
    [ "$got" = "$code" ] || fail "$*: exit $got instead of $code: $(cat "$work/err")"
    grep -q -e "$pattern" "$work/err" || fail "$*: no line like '$pattern' in: $(cat "$work/err")"
}
