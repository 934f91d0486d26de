# The benchmark of operations: on the emulator it measures every one of them, and prints a line of JSON and a row of a
# table for each.
. tests/e2e/common.sh
export CARAVAN_LIB=$bin/../lib
[ -e "$CARAVAN_LIB/libcaravan-emulated.so" ] || exit 0 # the build for the thread sanitizer lacks it
bench=$bin/../tests/gpu/bench

"$bench" --device emulated --tiny --only digest >"$work/out" 2>"$work/err" || fail "exit $?: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 4 ] || fail "the device, the copy, the product and the digest: $(cat "$work/out")"
expect 64 'usage' "$bench" --size
expect 64 'unknown device' "$bench" --device abacus

# The estimates in kernels/cuda/MEASURED.md are those of the program.
"$bench" --estimate | cut -d'|' -f 1-7 >"$work/estimates"
grep '^|' kernels/cuda/MEASURED.md | cut -d'|' -f 1-7 >"$work/written"
grep -Fxvf "$work/written" "$work/estimates" >"$work/out" && fail "not in MEASURED.md: $(cat "$work/out")"

[ -e "$bin/../gpu/bin" ] || exit 0 # under a sanitizer the whole list takes half a minute
"$bench" --device emulated --tiny >"$work/out" 2>"$work/err" || fail "exit $?: $(cat "$work/err")"
items=$("$bench" --estimate | tail -n +3 | wc -l)
[ "$items" -ge 40 ] || fail "$items items"
measured=$(grep -Ec '^\{"item": "[^"]+", "operation": "[a-z0-9_]+", "rows": [0-9]+, .*"us": [0-9.]+, "gb_per_s": [0-9.]+, "tflop_per_s": [0-9.]+, "share": [0-9.]+(, "share_of": "the own product")?\}$' "$work/out")
[ "$measured" = "$items" ] || fail "$measured of $items operations were measured: $(cat "$work/out")"
[ "$(grep -cE '^\| .* %( of the own product)? \|$' "$work/err")" = "$items" ] || fail "a table that lacks rows: $(cat "$work/err")"

# Without cuBLASLt the shares of what arithmetic limits are those of the own product, and say so.
none="none: products are measured with the own kernel"
grep -q "^| emulated, cuBLASLt: $none |$" "$work/err" || fail "$(head -n 1 "$work/err")"
head -n 1 "$work/out" | grep -q "\"kind\": \"emulated, sm_90\", \"cublaslt\": \"$none\"" || fail "$(head -n 1 "$work/out")"
grep -q '^| digest .* % |$' "$work/err" || fail "$(cat "$work/err")"
# Where other work slows the copy down that is measured first, memory limits even a large product: tries again.
own_product() {
    "$bench" --device emulated --tiny --only digest >"$work/out" 2>"$work/err" && has_own_product
}
has_own_product() { grep -q '^| large product .* % of the own product |$' "$work/err"; }
has_own_product || wait_until 120 own_product || fail "$(cat "$work/err")"
CARAVAN_CUBLASLT=$CARAVAN_LIB/libcaravan-emulated.so XDG_CACHE_HOME=$work "$bench" --device emulated --tiny --only none >"$work/out" 2>"$work/err" ||
    fail "exit $?: $(cat "$work/err")"
grep -q '^| emulated, cuBLASLt: cuBLASLt 1 |$' "$work/err" || fail "$(cat "$work/err")"
if grep "own product\|own kernel" "$work/err"; then fail "there is a library for products"; fi
