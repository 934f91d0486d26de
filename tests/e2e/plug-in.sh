# Which targets compile the plug-in for GPUs, which takes minutes: make and make install where nvcc is found, never with
# CUDA=0, and no test and not the demo. CUDA=1 fails without nvcc.
. tests/e2e/common.sh

# commands TARGET VARIABLE...: prints what make would do.
commands() {
    env -u MAKEFLAGS -u MAKEOVERRIDES -u MFLAGS -u CUDA make -n V=1 BUILD="$work/build" "$@" 2>&1
}

for target in all install; do
    commands $target NVCC=/opt/nvcc >"$work/out" || fail "$target: $(tail -n 3 "$work/out")"
    grep -q '^/opt/nvcc -shared .*libcaravan-cuda.so' "$work/out" || fail "$target does not build the plug-in"
    commands $target NVCC=/opt/nvcc CUDA=0 >"$work/out" || fail "$target: $(tail -n 3 "$work/out")"
    if grep -q '/opt/nvcc' "$work/out"; then fail "$target CUDA=0 builds the plug-in"; fi
    commands $target NVCC= >"$work/out" || fail "$target: $(tail -n 3 "$work/out")"
    if grep -q 'libcaravan-cuda' "$work/out"; then fail "$target builds the plug-in without nvcc"; fi
done
commands unit ops e2e programs NVCC=/opt/nvcc >"$work/out" || fail "the tests: $(tail -n 3 "$work/out")"
if grep -q '/opt/nvcc' "$work/out"; then fail "the tests build the plug-in"; fi
if commands all NVCC= CUDA=1 >"$work/out"; then fail "CUDA=1 works without nvcc"; fi
grep -q 'there is no nvcc' "$work/out" || fail "$(cat "$work/out")"
