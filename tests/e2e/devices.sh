# Devices: a GPU that is not there is exit 69 with one line, no device means a GPU or else the CPU, and what is no device
# is exit 64.
. tests/e2e/common.sh
make_data 1
make_model
rollout=("$bin/caravan-rollout" --stdio --store "$work/store" --model "$work/model" --group-size 2 --max-new-tokens 4)

expect 64 'cpu, cuda or cuda:N' "${rollout[@]}" --device abacus
expect 64 'cpu, cuda or cuda:N' "${rollout[@]}" --device cuda:x
expect 64 "device: 'cuda:.0-3.' is for the replicas of a pipeline; a process has one device" "${rollout[@]}" --device 'cuda:[0-3]'
if [ -e "$bin/../lib/libcaravan-emulated.so" ]; then # the build for the thread sanitizer lacks it
    expect 69 'device emulated:99: there are' "${rollout[@]}" --device emulated:99
fi
if [ ! -e /dev/nvidia0 ]; then
    expect 69 'device cuda' "${rollout[@]}" --device cuda
    [ "$(wc -l <"$work/err")" = 1 ] || fail "device cuda: more than one line: $(cat "$work/err")"
    expect 0 'using the CPU: device cuda' env CARAVAN_DEBUG=1 "${rollout[@]}"
fi
"${rollout[@]}" </dev/null >"$work/out" || fail "no device: exit $?"

# A plug-in is found in $CARAVAN_LIB, and what is no plug-in is refused.
mkdir "$work/lib" "$work/bin"
cp "$bin/caravan-rollout" "$work/bin"
rollout[0]=$work/bin/caravan-rollout
expect 69 'there is no libcaravan-emulated.so' "${rollout[@]}" --device emulated
echo rubbish >"$work/lib/libcaravan-emulated.so"
expect 69 'cannot load the plug-in' env CARAVAN_LIB="$work/lib" "${rollout[@]}" --device emulated
