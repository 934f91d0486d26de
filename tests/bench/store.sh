# What a group takes in groups.lmdb: 8 completions of 768 tokens after a prompt of 1,174, with random tokens, log-probabilities and
# words, as the last stage stores it. Prints bytes a group, in the record and in the file, and GB for 100,000 groups. Then what it
# costs to keep beside each group what the page shows without reading it (summaries, rows, samples, the replicas in `times`):
# processor time and bytes, with it and without, in turn.
set -eu
bin=${BIN:-$PWD/build/bin} count=400 work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT

LC_ALL=C awk -v count=$count '
function ints(n, low, high,   s, i) { for (i = 0; i < n; i++) s = s (i ? "," : "") int(low + rand() * (high - low)); return s }
function floats(n,   s, i) { for (i = 0; i < n; i++) s = s (i ? "," : "") sprintf("%.7g", -rand() * rand() * 8); return s }
function words(n,   s, i) { for (i = 0; i < n; i++) s = s sprintf("%c%c%c ", 97 + rand() * 26, 97 + rand() * 26, 97 + rand() * 26); return s }
BEGIN {
    for (i = 1; i < 768; i++) versions = versions ",17"
    versions = "17" versions
    for (g = 0; g < count; g++) {
        printf "{\"id\":\"e0-%06d\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"clips/%d.mp4\"},{\"type\":\"text\",\"text\":\"%s\"}]}],\"problem_type\":\"multiple choice\",\"solution\":\"<answer>B</answer>\"},", g, g, words(160)
        printf "\"requires\":{\"policy\":17,\"reference\":10,\"exact\":1,\"order\":%d},", g
        printf "\"media\":[{\"kind\":\"video\",\"key\":\"%032d\",\"frames\":16,\"height\":280,\"width\":392,\"timestamps\":[%s],\"seconds_per_grid\":1}],\"prompt_tokens\":[%s],\"completions\":[", g, floats(16), ints(1174, 0, 151000)
        for (c = 0; c < 8; c++)
            printf "%s{\"text\":\"%s\",\"finish\":\"length\",\"tokens\":[%s],\"logprobs\":[%s],\"versions\":[%s]}", (c ? "," : ""), words(768), ints(768, 0, 151000), floats(768), versions
        printf "]}\n"
    }
}' | "$bin/caravan-reward" --stdio --method grpo --store "$work/store" >"$work/out" 2>/dev/null
file=$(stat -c %s "$work/store/groups.lmdb") json=$(($(stat -c %s "$work/out") / count))
bytes=$("$bin/caravan" groups prune --store "$work/store" --keep 1B 2>&1 | sed -n 's/.*removed [0-9]* groups of \([0-9]*\) bytes/\1/p')
echo "$bytes $count $file $json" | awk '{ printf "a group of 8 x 768 tokens: %d bytes in the store, %d of its file, %d as JSON; 100,000 groups: %.1f GB\n", $1 / ($2 - 1), $3 / $2, $4, $3 / $2 * 1e5 / 1e9 }'

times='"source":[100.125,100.25],"frames":[100.5,100.75],"rollout":[101.125,103.25],"refscore":[103.5,104.75],"reward":[104.875,104.9375],"optim":[105.5,106.125]'
sed "s/}\$/,\"trained\":{\"step\":17},\"times\":{$times}}/" "$work/out" | "$(dirname "$bin")/tests/bench/store_bench" save "$work/bench" >"$work/saved"
awk '{ printf "to save it takes %.1f us of a processor, of them for the page %.1f us (%.1f %%); of its %d bytes in the file %d are for the page (%.2f %%, asked: at most 1 %%)\n",
    $2, $3, 100 * $3 / $2, $4, $5, 100 * $5 / $4 }' "$work/saved"
