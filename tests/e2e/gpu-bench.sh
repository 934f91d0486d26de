# The benchmark of operations that memory limits: on the emulator it measures every one of them, and prints a line of
# JSON for each.
. tests/e2e/common.sh
export CARAVAN_LIB=$bin/../lib
[ -e "$CARAVAN_LIB/libcaravan-emulated.so" ] || exit 0 # the build for the thread sanitizer lacks it
bench=$bin/../tests/gpu/bench

"$bench" --device emulated --tiny >"$work/out" 2>"$work/err" || fail "exit $?: $(cat "$work/err")"
items=$(grep -c '^    ITEM(' tests/gpu/bench.c)
measured=$(grep -Ec '^\{"item": "[^"]+", "rows": [0-9]+, .*"us": [0-9.]+, "gb_per_s": [0-9.]+, "share_of_copy": [0-9.]+\}$' "$work/out")
[ "$measured" = "$items" ] || fail "$measured of $items operations were measured: $(cat "$work/out")"
[ "$(wc -l <"$work/err")" = "$items" ] || fail "a table of $(wc -l <"$work/err") rows: $(cat "$work/err")"

"$bench" --device emulated --tiny --only digest >"$work/out" 2>"$work/err" || fail "exit $?: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 3 ] || fail "the device, the copy and the digest: $(cat "$work/out")"
expect 64 'usage' "$bench" --size
expect 64 'unknown device' "$bench" --device abacus
