# REFERENCE.md is what the tables say.
. tests/e2e/common.sh
"$bin/caravan" reference >"$work/reference"
cmp "$work/reference" REFERENCE.md || fail "REFERENCE.md is old: make reference"
