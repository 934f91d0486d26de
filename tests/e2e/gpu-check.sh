# The archive for GPU machines, packed with the emulator alone: unpacked elsewhere it needs glibc and what it brings. Its
# check answers the questions, measures, and trains through SIGKILL; a device that is not there stops no item.
. tests/e2e/common.sh
pack=$bin/../gpu/bin
[ -e "$pack/questions" ] || exit 0 # the sanitizers' builds lack it
mkdir -p "$work/pack/gpu" "$work/there"
cp -R "$pack" "$work/pack/gpu/"
host=$(getconf GNU_LIBC_VERSION) host=${host#glibc } # a program of a newer system may need more than Ubuntu 22.04 has
if GLIBC=2.2 BIN=$bin tools/gpu-pack "$work/pack/gpu" "$work/gpu.tar.gz" "$bin/../lib/libcaravan-emulated.so" 2>"$work/err" >"$work/out"; then
    fail "a glibc that is too old for the programs was not refused"
fi
grep -q "needs glibc .* newer than 2.2: " "$work/err" || fail "$(cat "$work/err")"
[ "$host" != 2.36 ] || host=2.35
GLIBC=$host BIN=$bin tools/gpu-pack "$work/pack/gpu" "$work/gpu.tar.gz" "$bin/../lib/libcaravan-emulated.so" 2>/dev/null >"$work/out"
rm -r "$work/pack"
cd "$work/there"
tar -xzf ../gpu.tar.gz
ldd gpu/bin/* | awk '/=> / { print $3 }' | grep -v "^$work/there/" | sort -u >"$work/foreign"
if grep -Ev '/lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so' "$work/foreign"; then fail "libraries that the archive lacks"; fi

# check DEVICE ITEM...: runs the archive's check without this shell's environment.
check() {
    device=$1
    shift
    env -i PATH="$PATH" PATIENCE=5 DEVICE="$device" BENCH="--tiny --only digest" STEPS=4 \
        SHAPE=data/model/config.json SEARCH="$work/disk" gpu/check "$@" >"$work/table" 2>"$work/err" </dev/null
}

mkdir "$work/disk"
check emulated machine questions sharing bench peer || fail "$(cat "$work/table")"
[ "$(grep -c '"result": "ok"' gpu-check/check.json)" = 5 ] || fail "$(cat gpu-check/check.json)"
[ "$(grep -c '"like": "sm_90", "equal": \([0-9]*\), "of": \1}' gpu-check/questions.json)" = 8 ] || fail "$(cat gpu-check/questions.json)"
grep '"like": "sm_80"' gpu-check/questions.json | grep -q '"equal": \([0-9]*\), "of": \1}' && fail "the two kinds of tensor cores agree"
grep -q "^cuBLASLt: none: products are measured with the own kernel$" "$work/table" gpu-check/machine.log || fail "$(cat "$work/table")"
cp "$work/table" "$work/first"
grep -q "is needed; libstdc++ of the machine" gpu-check/machine.log || fail "$(cat gpu-check/machine.log)"
ls gpu/lib/spare/libstdc++.so.* gpu/lib/spare/libgcc_s.so.* >"$work/out" || fail "the archive has no libstdc++"
grep -q '"us_called"' gpu-check/questions.json && grep -q '"exported"' gpu-check/questions.json || fail "$(cat gpu-check/questions.json)"
grep -q '"peer": "none' gpu-check/peer.json || [ -e /dev/nvidia0 ] || fail "a peer without a GPU: $(cat gpu-check/peer.log)"
grep -q '"item": "digest", .*"us": ' gpu-check/bench.json || fail "nothing was measured: $(cat gpu-check/bench.log)"
# Where other work slows the copy down that is measured first, memory limits even a large product: tries again.
says_of_what() { grep -q '^| .* % of the own product |$' "$1"; }
bench_again() { check emulated bench && says_of_what "$work/table"; }
says_of_what "$work/first" || wait_until 120 bench_again || fail "the shares do not say of what they are: $(cat "$work/table")"

check cpu pipeline model score || fail "$(cat "$work/table")"
grep -q '{"group": "score", .*"seconds": [0-9.]*, "tokens_per_s": [0-9]*}' "$work/table" || fail "$(cat "$work/table")"
grep -q 'equal to the bit' gpu-check/pipeline.json || fail "$(cat gpu-check/pipeline.log)"

if check cuda:99 machine questions linear sharing parity bits; then fail "there is a device cuda:99"; fi
grep -q "^cuBLASLt: the device does not open$" "$work/table" || fail "$(cat "$work/table")"
grep -q '"item": "machine", .*"result": "ok"' gpu-check/check.json || fail "$(cat gpu-check/check.json)"
[ "$(grep -c '"result": "ok"' gpu-check/check.json)" = 1 ] || fail "more than the machine is ok: $(cat gpu-check/check.json)"
grep -q '"item": "questions", .*"result": "exit 69"' gpu-check/check.json || fail "$(cat gpu-check/check.json)"
grep -q '"item": "linear", .*"result": "exit 69"' gpu-check/check.json || fail "$(cat gpu-check/check.json)"
expect 64 "no item products" gpu/check products
# The errors of wrong kernels are bugs, other errors of the device are not; a failed item is repeated.
for error in 98 714 715 717 718; do
    expect 70 "an error that the emulator does not make" env CARAVAN_EMULATED_ERROR=$error gpu/bin/harness --device emulated --only patchify
done
expect 69 "an error that the emulator does not make" env CARAVAN_EMULATED_ERROR=46 gpu/bin/harness --device emulated --only patchify
if env CARAVAN_EMULATED_ERROR=714 PATIENCE=5 DEVICE=emulated gpu/check questions >"$work/table" 2>&1; then fail "every wait failed, but check did not"; fi
grep -q "questions again, with CUDA_LAUNCH_BLOCKING=1" gpu-check/questions.log || fail "$(cat gpu-check/questions.log)"
expect 69 "the driver is for CUDA 12.4; 13.0, driver 580 or newer, is needed" \
    env CARAVAN_EMULATED_DRIVER=12040 gpu/bin/harness --device emulated --only patchify
expect 69 "there is no driver for a GPU" env CARAVAN_EMULATED_DRIVER=0 gpu/bin/harness --device emulated --only patchify
expect 64 "usage: questions" gpu/bin/questions --device emulated nothing
# cuBLASLt is found wherever it is on the disk, if it works.
mkdir -p "$work/disk/a b/lib" "$work/disk/z"
ln -s "$work/there/gpu/lib/libcaravan-emulated.so" "$work/disk/a b/lib/libcublasLt-emulated.so"
echo nothing >"$work/disk/z/libcublasLt-emulated.so"
check emulated machine bench || fail "$(cat "$work/table")"
grep -q "^cuBLASLt: cuBLASLt 1, in $work/disk/a b/lib/libcublasLt-emulated.so, where the programs do not look" "$work/table" || fail "$(cat "$work/table")"
if grep "own product" "$work/table"; then fail "bench did not use what was found"; fi
# It is also found where pip and conda put it.
found=$work/env/lib/python3.11/site-packages/nvidia/cublas/lib
mkdir -p "$found" "$work/conda/lib" "$work/home"
ln -s "$work/there/gpu/lib/libcaravan-emulated.so" "$found/libcublasLt-emulated.so"
ln -s "$found/libcublasLt-emulated.so" "$work/conda/lib/"
ln -s "$work/env" "$work/home/.local"
for place in "VIRTUAL_ENV=$work/env" "CONDA_PREFIX=$work/env" "CONDA_PREFIX=$work/conda" "HOME=$work/home"; do
    expect 0 "cuBLASLt 1: " env -u VIRTUAL_ENV -u CONDA_PREFIX -u CARAVAN_LIB HOME="$work" "$place" gpu/bin/harness --device emulated --only patchify
done
env -u VIRTUAL_ENV -u CONDA_PREFIX -u CARAVAN_LIB HOME="$work" gpu/bin/harness --device emulated --only patchify 2>"$work/err" >"$work/out"
if grep "cuBLASLt 1: " "$work/err"; then fail "cuBLASLt was found where it is not"; fi
