# REFERENCE.md is equal to the output of `caravan reference`.
. tests/e2e/common.sh
"$bin/caravan" reference >"$work/reference"
cmp "$work/reference" REFERENCE.md || fail "REFERENCE.md is out of date: run make reference"
