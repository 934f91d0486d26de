# Runs the commands of TUTORIAL.md in order, in an empty directory, and compares what they print with what the page shows.
# A ```sh block is a script. A ```text block has beginnings of lines that the script before it
# prints, but for digits, white space and directories. A ```sh block with the word `meanwhile` is run while the one before
# it runs.
. tests/e2e/common.sh
if grep -q '__[at]san_init' "$bin/caravan"; then
    echo "left out: under a sanitizer it takes minutes, and runs nothing that the other scripts do not run"
    exit 0
fi
command -v python3 >/dev/null || { echo "left out: python3 is not installed"; exit 0; }
page=$PWD/TUTORIAL.md
export pipelines=$PWD/pipelines PATH=$(realpath "$bin"):$PATH
mkdir "$work/blocks" "$work/own"

# Each block of the page becomes a file, NUMBER.WORDS.
awk -v dir="$work/blocks" '
    /^```./ && !inside { words = substr($0, 4); gsub(" ", "-", words); file = sprintf("%s/%02d.%s", dir, ++count, words); inside = 1; next }
    /^```/ { if (inside) close(file); inside = !inside; file = ""; next }
    inside && file { print > file }' "$page"

# shape: standard input with one 0 for each number, one blank for white space, and no directory of the reader's.
shape() { sed -E "s|$work/own/\|/home/me/own/||g; s/[0-9]+([.:-][0-9]+)*/0/g; s/[[:space:]]+/ /g; s/^ | \$//g"; }

cd "$work/own"
blocks=("$work"/blocks/*)
for i in "${!blocks[@]}"; do
    case ${blocks[i]} in
    *.sh)
        got=0
        bash -eu -o pipefail "${blocks[i]}" >"$work/printed" 2>&1 </dev/null &
        if [[ ${blocks[i + 1]:-} = *.sh-meanwhile ]]; then
            until bash -eu -o pipefail "${blocks[i + 1]}" >"$work/meanwhile" 2>&1 </dev/null; do
                kill -0 $! 2>/dev/null || fail "$(cat "${blocks[i + 1]}" "$work/meanwhile" "$work/printed")"
                sleep 0.1
            done
        fi
        wait $! || got=$?
        [ $got = 0 ] || fail "exit $got: $(cat "${blocks[i]}" "$work/printed")"
        ;;
    *.sh-meanwhile) ;;
    *.text)
        shape <"$work/printed" >"$work/shape"
        while read -r line; do
            line=$line awk 'index($0, ENVIRON["line"]) == 1 { found = 1 } END { exit !found }' "$work/shape" ||
                fail "the page shows '$line', but printed was: $(cat "$work/printed")"
        done < <(shape <"${blocks[i]}")
        ;;
    *) fail "a block of kind ${blocks[i]##*/}" ;;
    esac
done
[ ${#blocks[@]} -gt 10 ] || fail "${#blocks[@]} blocks"

# The page shows the example of a reward.
sed -n '/^    def reward/,/^    .*flush=True/s/^    //p' "$page" | grep . >"$work/shown"
[ "$(wc -l <"$work/shown")" = 11 ] || fail "the reward of the page has $(wc -l <"$work/shown") lines"
sed -n '/^def reward/,$p' "$pipelines/examples/my_reward.py" | grep . | cmp - "$work/shown"
