# A pipeline on two machines with CURVE: two network namespaces where they can be created, else two ports of one machine.
# The final weights are equal to those of one machine. A process with a wrong key is refused.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model

# A run's directory may have a long path.
deep=$(printf '%0150d/%0150d' 1 2)
mkdir -p "$work/$deep"
# pipeline OPTIONS: as make_pipeline, in bfloat16, in which the differences between versions of the weights are small.
pipeline() {
    make_pipeline "$1"
    sed -i 's/^precision: float32/precision: bfloat16/' "$work/p.yaml"
}
pipeline ""
run "$deep/alone" || fail "$(cat "$work/$deep/alone.err")"
want=$(weights_of "$deep/alone")
# Frames that are evicted before they are needed are decoded again, with the options of the frames stage.
tight="--set frames.store_limit=1"
run tight $tight --set 'optim.store_keep=2 steps' || fail "a tight limit: $(cat "$work/tight.err")"
[ "$(weights_of tight)" = "$want" ] || fail "with a tight limit of the store other weights are trained"
[ "$("$bin/caravan" frames ls --store "$work/tight/store" | wc -l)" = 1 ] || fail "the limit does not hold"
[ "$("$bin/caravan" groups ls --store "$work/tight/store" | grep -o 'step .*' | tr '\n' ' ')" = "step 7 step 7 step 8 step 8 " ] ||
    fail "the groups of other steps than the last two stay"

# What one machine alone has is in a directory that can be hidden from the other one.
mkdir "$work/hidden"
mv "$work/data" "$work/hidden"
ln -s hidden/data "$work/data"
two_machines 10.77.0 "unshare -m true"
# The second namespace cannot read the first one's directory, so it must pull the weights.
[ -z "$in_two" ] || in_two="$in_two unshare -m sh -c"
take_ports

key_one=$("$bin/caravan" keygen "$work/one.key")
key_two=$("$bin/caravan" keygen "$work/two.key")
[ "$(stat -c %a "$work/one.key")" = 600 ] || fail "other users may read the key"
pipeline "on: two"
cat >>"$work/p.yaml" <<END
machines:
  one: {address: $one, port: $port, key: "$key_one"}
  two: {address: $two, port: $((port + 20)), key: "$key_two"}
END

expect 64 "say which one this is" "$bin/caravan" run "$work/p.yaml"
expect 64 "does not match the key of machine two in the pipeline file" "$bin/caravan" run "$work/p.yaml" --machine two --key "$work/one.key"
# A machine that is named like this host, with or without a domain, needs no --machine.
host=$(uname -n)
for name in "$host" "${host%%.*}.test"; do
    sed "s/two/$name/" "$work/p.yaml" >"$work/host.yaml"
    expect 64 "does not match the key of machine $name in" "$bin/caravan" run "$work/host.yaml" --key "$work/one.key"
done

# start_one NAME OPTION...: machine one in the background, its run in $work/NAME; start_two likewise. The first one's
# directory and the data are hidden from the second.
start_one() {
    name=$1
    shift
    mkdir -p "$work/$name"
    $in_one timeout -k 60 300 "$bin/caravan" run "$work/p.yaml" --machine one --key "$work/one.key" --set run="$work/$name" "$@" \
        2>"$work/$name.err" &
    first=$!
}
start_two() {
    name=$1
    shift
    second="exec timeout -k 60 300 '$bin/caravan' run $work/p.yaml --machine two --key $work/two.key --set run=$work/$name $*"
    if [ -n "$in_two" ]; then
        $in_two "mount -t tmpfs none $work/one && mount -t tmpfs none $work/hidden && $second" 2>"$work/$name.err" &
    else
        sh -c "$second" 2>"$work/$name.err" &
    fi
    second=$!
}
# Waits for both: they must end well.
wait_for_both() {
    wait $second || fail "two: $(cat "$work"/*.err)"
    wait $first || fail "one: $(cat "$work"/*.err)"
}

# Refscore has a replica on each machine.
start_one one --set refscore.on=one,two $tight
wait_for_line "$work/one.err" "waiting for two" # one names the machine that it waits for
CARAVAN_DEBUG=1 start_two two --set refscore.on=one,two $tight
wait_for_both
[ -s "$work/one/logs/refscore.log" ] && [ -s "$work/two/logs/refscore-2.log" ] || fail "refscore is not on both machines"
check_steps one 8
[ "$(weights_of one)" = "$want" ] || fail "the weights of two machines differ from those of one"
[ -e "$work/one/store-one/groups.lmdb" ] && [ -e "$work/two/store-two/groups.lmdb" ] || fail "a machine has no store of its own"
[ ! -e "$work/one/store" ] || fail "there is a store that machines would share"
[ "$("$bin/caravan" groups ls --store "$work/one/store-one" | grep -c trained)" = 16 ] || fail "groups are missing"
if [ -n "$in_two" ]; then
    ls "$work/two/weights" | grep -q pulled-policy || fail "no weights were pulled"
    [ "$(ls "$work/two/weights" | grep -c pulled-policy)" -le 2 ] || fail "more than two versions are kept: $(ls "$work/two/weights")"
    [ -z "$(find "$work/two/weights" -name '*.part')" ] || fail "a part is left"
    # Of most versions only the difference travelled; together they have less than 0.4 of the files' bytes.
    sed -n 's/.*a difference of \([0-9]*\) bytes for \([0-9]*\)/\1 \2/p' "$work/two/logs/rollout.log" |
        awk '{ sum += $1; whole += $2 } END { exit !(NR >= 4 && sum < 0.4 * whole) }' ||
        fail "too many bytes of weights travelled: $(grep "bytes" "$work/two/logs/rollout.log")"
fi

# Both machines may share the run's directory and the key, and start at the same moment. Replicas of rollout run on both.
cp "$work/p.yaml" "$work/two-keys.yaml"
mv "$work/two.key" "$work/its-own.key"
cp "$work/one.key" "$work/two.key"
sed -i "s/key: .*\"/key: \"$(sed 's/[&|\/\\]/\\&/g' <<<"$key_one")\"/" "$work/p.yaml"
make_program held "exec sed -u -e '$force' -e 'e until [ -e $work/go ]; do sleep 0.05; done'"
slowly="--set rollout.on=one,two --set force.program=$work/held.sh"
start_one shared $slowly
start_two shared $slowly
both() { [ "$("$bin/caravan" ls | grep -c " $work/shared (machine \(one\|two\))$")" = 2 ]; }
wait_until 120 both || fail "ls: $("$bin/caravan" ls)"
# No run on one machine begins there meanwhile.
sed '/^machines:/,$d; s/on: two//' "$work/p.yaml" >"$work/alone.yaml"
expect 64 "shared: another caravan run is using this directory" "$bin/caravan" run "$work/alone.yaml" --set run="$work/shared"
# A page of the run shows its processes once it knows on which machine it is.
"$bin/caravan" view "$work/shared" --html "$work/page.html" || fail "no page"
grep -q "cannot be watched: the pipeline has 2 machines, and none is named" "$work/page.html" || fail "the page does not say which option it needs"
! grep -q '"history": {"time": \[[0-9]' "$work/page.html" || fail "the page sees processes without knowing where it is"
sees() {
    "$bin/caravan" view "$work/shared" --machine one --key "$work/one.key" --html "$work/page.html" || fail "no page of machine one"
    grep -q '"history": {"time": \[[0-9]' "$work/page.html"
}
wait_until 60 sees || fail "the page does not see the processes"
! grep -q "cannot be watched: " "$work/page.html" || fail "the page says that it does not see the processes"
expect 64 "--machine none: the pipeline file has no machine of that name" "$bin/caravan" view "$work/shared" --machine none
touch "$work/go"
wait_for_both
check_steps shared 8
[ "$(weights_of shared)" = "$want" ] || fail "two machines with one directory train other weights"
grep -q "on: \[one, two\]" "$work/shared/pipeline.yaml" || fail "pipeline.yaml: $(cat "$work/shared/pipeline.yaml")"
# The nodes of a Slurm job have their key there, and the file lists them as machines: a key of the user's is not asked for.
cp "$work/one.key" "$work/shared/machine.key"
expect 69 "no run of this file is active in $work/shared" env -u HOME -u XDG_CONFIG_HOME $in_one "$bin/caravan" top "$work/shared" --machine one
rm "$work/shared/machine.key"
mv "$work/two-keys.yaml" "$work/p.yaml"
mv "$work/its-own.key" "$work/two.key"

# Copies of the weights that the disk has damaged (zeros, from the start or from the middle) are fetched again. Those of
# the first versions, which are not kept, are made again with their size.
if [ -n "$in_two" ]; then
    rm -r "$work/one" "$work/two"
    start_one one
    CARAVAN_DEBUG=1 start_two two # alone it has rollout and refscore, which fetch every version
    wait_for_both
    sed -n 's/.*fetching version [0-9]* to \(.*\), \([0-9]*\) bytes/\1 \2/p' "$work"/two/logs/{rollout,refscore}.log |
        while read -r copy size; do truncate -s "$size" "$copy"; done
    for copy in "$work"/two/weights/pulled-*; do
        size=$(stat -c %s "$copy")
        case $copy in *reference*) from=$((size / 2)) ;; *) from=0 ;; esac
        truncate -s $from "$copy"
        truncate -s "$size" "$copy"
    done
    rm -r "$work/one" "$work"/two/store-*
    start_one one
    start_two two
    wait_for_both
    check_steps one 8
    [ "$(weights_of one)" = "$want" ] || fail "with damaged copies two machines train other weights"
    for stage in rollout refscore; do
        grep -q "fetching it again" "$work/two/logs/$stage.log" || fail "$stage met no damaged copy"
    done
fi

# Machines that do not agree are refused before the first step. expect_refusal CODE PATTERN OPTION...: with these options
# of machine two the machine that is refused first ends with CODE, and machine two says why.
expect_refusal() {
    code=$1 pattern=$2
    shift 2
    rm -rf "$work/one" "$work/two"
    start_one one
    start_two two "$@"
    has_ended() { ! kill -0 $first 2>/dev/null || ! kill -0 $second 2>/dev/null; }
    wait_until 120 has_ended || fail "$*: not refused"
    got=0
    if kill -0 $first 2>/dev/null; then
        wait $second || got=$?
    else
        wait $first || got=$?
    fi
    kill $first $second 2>/dev/null || true
    wait $first || true
    wait $second || true
    [ $got = "$code" ] || fail "$*: exit $got instead of $code: $(cat "$work/two.err")"
    grep -q -e "$pattern" "$work/two.err" || fail "$*: no line like '$pattern' in: $(cat "$work/two.err")"
    [ ! -s "$work/one/metrics.jsonl" ] || fail "$*: a step was trained"
}
"$bin/caravan" init "$work/other" --shape pipelines/miniature/shape.json --train-tokenizer "$work/data/text.txt" --seed 4
expect_refusal 65 "machine two's model directory differs from optim's" --set model="$work/other"
expect_refusal 65 "machine two's model directory differs from optim's" --set refscore.model="$work/other"
expect_refusal 69 "rollout's settings differ" --set rollout.temperature=0.3
expect_refusal 69 "refscore's settings differ" --set refscore.precision=float32
expect_refusal 69 "optim's settings differ" --set optim.lr=0.002
