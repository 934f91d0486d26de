#!/usr/bin/env bash
# The stages of an evaluation that use no model, score and judge, on one processor: groups of 1.6 KB (few tokens) and of 11 KB (a clip of 1,200 prompt
# tokens, 160 tokens of completion). Then a store of BENCH_GROUPS (100,000) groups: how long it takes to fill and to evaluate.
set -euo pipefail
dir=$(dirname "$BIN")/bench groups=${BENCH_GROUPS:-100000}
TIMEFORMAT='%R %U %S'
mkdir -p "$dir"

# make_groups COUNT PROMPT_TOKENS TOKENS: sampled groups with a thinking of some sentences.
make_groups() {
    awk -v count="$1" -v prompt="$2" -v tokens="$3" '
        function repeat(text, times,   all) { while (times-- > 0) all = all text; return all }
        function numbers(times, form, scale,   all) { while (times-- > 0) all = all sprintf(form, scale * rand()) (times ? "," : ""); return all }
        BEGIN {
            question = "What does the person do next? Options:\\nA. rinse the cloth\\nB. close the tap\\nC. dry a plate\\nD. lift the lid\\n"
            wording = repeat("Please think about this question before you answer. ", 5)
            thinking = repeat("The person holds a pan, moves it to the left, and waits for a while. ", 7)
            for (i = 0; i < count; i++) {
                letter = substr("ABCD", 1 + int(4 * rand()), 1)
                if (i % 64 == 0) { # drawing numbers takes longer than what is measured
                    ids = numbers(prompt, "%d", 151643)
                    sampled = "\"tokens\":[" numbers(tokens, "%d", 151643) "],\"logprobs\":[" numbers(tokens, "%.7g", -2) "],\"versions\":[" numbers(tokens, "%d", 0) "]"
                }
                printf "{\"v\":1,\"id\":\"e0-%06d\",\"sample_id\":\"s%d\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"%d.mp4\"},{\"type\":\"text\",\"text\":\"%s\"}]}],\"problem_type\":\"multiple choice\",\"solution\":\"<answer>B</answer>\",\"question\":\"%s\",\"options\":[\"rinse the cloth\",\"close the tap\",\"dry a plate\",\"lift the lid\"],\"category\":\"Work\",\"level\":\"L%d\"},\"prompt_tokens\":[%s],\"completions\":[{%s,\"text\":\"<think>%s\\nSo the answer is %s.</think><answer>%s</answer>\",\"finish\":\"eos\"}]}\n", i, i, i, question wording, question, 1 + i % 3, ids, sampled, thinking, letter, letter
            }
        }'
}

for kind in "short 20000 3 3" "long 20000 1200 160"; do
    read -r name count prompt tokens <<<"$kind"
    make_groups "$count" "$prompt" "$tokens" >"$dir/$name.jsonl"
    bytes=$(($(wc -c <"$dir/$name.jsonl") / count))
    echo "== evaluation: $count groups of $bytes bytes"
    for stage in score judge; do
        { time "$BIN/caravan-$stage" --stdio <"$dir/$name.jsonl" >/dev/null 2>"$dir/$stage.log"; } 2>"$dir/time.txt"
        awk -v stage="$stage" -v count="$count" '{ printf "  %-6s %6.2f processor-s, %7.0f groups/s on one processor\n", stage, $2 + $3, count / ($2 + $3) }' "$dir/time.txt"
    done
done

echo "== evaluation: a store of $groups groups"
rm -rf "$dir/evaluated"
make_groups "$groups" 3 3 >"$dir/groups.jsonl"
{ time "$BIN/caravan-score" --stdio --store "$dir/evaluated" <"$dir/groups.jsonl" >"$dir/scored.jsonl" 2>"$dir/score.log"; } 2>"$dir/time.txt"
awk -v count="$groups" '{ printf "  score --store %6.1f s, %6.0f groups/s\n", $1, count / $1 }' "$dir/time.txt"
for input in evaluated scored.jsonl; do
    { time "$BIN/caravan" eval "$dir/$input" >/dev/null; } 2>"$dir/time.txt"
    awk -v input="$input" '{ printf "  caravan eval %-12s %6.2f s\n", input, $1 }' "$dir/time.txt"
done
rm -rf "$dir/evaluated" "$dir"/{short,long,groups,scored}.jsonl
