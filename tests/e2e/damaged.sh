# Files of a run that are damaged: noise over the pages of each LMDB file ends no program by a signal; a line names the file
# and what to do, and after that the run ends with the same weights.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline ""
run whole || fail "whole: $(cat "$work/whole.err")"
want=$(weights_of whole)

# noise FILE OFFSET: the same 64 bytes for the same offset.
noise() {
    printf '%s' "$2" | sha512sum | head -c 64 | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
for name in store/groups store/frames ledger; do
    file=$name.lmdb
    rm -rf "$work/noise"
    mkdir "$work/noise"
    cp -r "$work/whole/store" "$work/noise/store"
    case $name in
    store/groups) look="groups export --store $work/noise/store" ;;
    store/frames) look="frames ls --store $work/noise/store" ;;
    ledger) look= ;;
    esac
    found=0
    pages=$(($(stat -c %s "$work/whole/$file") / 4096))
    for turn in $(seq 40); do
        [ -n "$look" ] || break
        cp "$work/whole/$file" "$work/noise/$file"
        # The first pages and those that are spread over the file; in each the head, the offsets and the content.
        page=$((turn <= 20 ? turn / 3 % pages : turn * 7919 % pages))
        noise "$work/noise/$file" $((page * 4096 + (turn % 3) * (turn % 3) * 900))
        got=0
        "$bin/caravan" $look >"$work/out" 2>"$work/err" </dev/null || got=$?
        if [ $got = 65 ] && grep -q "$file: the file is damaged (.*): remove it, and what it had is computed again" "$work/err"; then
            found=$((found + 1))
        else
            [ $got = 0 ] || fail "$file, page $page: exit $got: $(cat "$work/err")"
        fi
    done
    [ -z "$look" ] || [ $found -gt 3 ] || fail "$file: noise was found only $found times"

    # A run ends at once with the line; without the file it is as it was.
    rm -rf "$work/broken"
    cp -r "$work/whole" "$work/broken"
    rm -r "$work/broken"/checkpoints/step-00000[5-8] "$work/broken/checkpoints/latest" "$work"/broken/checkpoints/state-* 2>/dev/null || true
    for page in $(seq 2 $((pages < 40 ? pages : 40))); do noise "$work/broken/$file" $((page * 4096)); done # some are free
    got=0
    run broken || got=$?
    [ $got = 65 ] || fail "$file: exit $got: $(cat "$work/broken.err")"
    grep -q "ended with exit code 65: .*$file: the file is damaged ([^)]*): remove it, and what it had is computed again" "$work/broken.err" ||
        fail "$file: $(cat "$work/broken.err")"
    rm "$work/broken/$file"
    run broken || fail "$file removed: $(cat "$work/broken.err")"
    [ "$(weights_of broken)" = "$want" ] || fail "$file removed: other weights"
done

# A store that a process is about to make, which takes long on a full disk, is none yet.
mkdir -p "$work/begun/store"
touch "$work/begun/store/groups.lmdb"
sed "s|$work/whole|$work/begun|" "$work/whole/pipeline.yaml" >"$work/begun/pipeline.yaml"
expect 65 'there is no groups.lmdb in .*begun' "$bin/caravan" groups ls "$work/begun"
"$bin/caravan" view --html "$work/begun.html" "$work/begun" 2>"$work/out" || fail "a run without groups: $(cat "$work/out")"
