#!/usr/bin/env bash
# caravan init: a trained tokenizer and a copied one, equal bits for equal seeds and any number of threads, the sizes and
# ids in config.json, and arguments that are refused.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fails CODE WORD COMMAND...: the command must exit with CODE and print one line, which contains WORD.
fails() {
    code=$1 word=$2
    shift 2
    got=0
    "$@" > /dev/null 2> "$work/err" || got=$?
    [ "$got" = "$code" ] || { echo "exit $got, not $code: $*"; cat "$work/err"; exit 1; }
    [ "$(wc -l < "$work/err")" = 1 ] && grep -qF -- "$word" "$work/err" || { echo "expected one line with '$word', got:"; cat "$work/err"; exit 1; }
}

init() { "$BIN/caravan" init "$@"; }

init "$work/a" --shape tiny --seed 5 --threads 1 --train-tokenizer README.md --vocab-size 400
init "$work/b" --shape tiny --seed 5 --threads 3 --train-tokenizer README.md --vocab_size=400
init "$work/c" --shape tiny --seed 6 --tokenizer "$work/a"
for file in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json; do
    cmp "$work/a/$file" "$work/b/$file"
done
cmp -s "$work/a/model.safetensors" "$work/c/model.safetensors" && { echo "two seeds give the same model"; exit 1; }
cmp "$work/a/tokenizer.json" "$work/c/tokenizer.json"

# config.json has the tokenizer's ids.
tokens=$(echo '{"text":"<|im_end|><|image_pad|><|video_pad|>"}' | "$BIN/caravan" tokenize --model "$work/a")
for key in eos_token_id image_token_id video_token_id; do
    grep -o "\"$key\": [0-9]*" "$work/a/config.json" | grep -o '[0-9]*$'
done | paste -sd, | sed 's/,/, /g; s/.*/{"tokens": [&]}/' | grep -qxF "$tokens"

# A written config.json can be given as --shape. A bfloat16 file is half as large as a float32 file.
init "$work/d" --shape "$work/a/config.json" --dtype bfloat16 --tokenizer "$work/a"
whole=$(stat -c %s "$work/a/model.safetensors") half=$(stat -c %s "$work/d/model.safetensors")
[ $((whole - 2 * half)) -lt 0 ] && [ $((2 * half - whole)) -lt 40000 ]
grep -q '"torch_dtype": "bfloat16"' "$work/d/config.json"

# The published shapes are known, and a Qwen2-VL gets the processor of its kind.
fails 64 'qwen2-vl-2b, qwen2-vl-7b' init "$work/x" --shape qwen2-vl-3b --tokenizer "$work/a"
init "$work/f" --shape tests/data/model/clip/config.json --dtype float32 --tokenizer "$work/a" 2> "$work/err" && exit 1
grep -q 'vocab_size 76 is less' "$work/err"
sed 's/"vocab_size": 76/"vocab_size": 448/' tests/data/model/clip/config.json > "$work/clip.json"
init "$work/f" --shape "$work/clip.json" --dtype float32 --tokenizer "$work/a"
grep -q '"Qwen2VLProcessor"' "$work/f/preprocessor_config.json"
grep -q '"Qwen2_5_VLProcessor"' "$work/a/preprocessor_config.json"

fails 64 'already' init "$work/a" --shape tiny --tokenizer "$work/b"
fails 64 'huge' init "$work/x" --shape huge --tokenizer "$work/a"
fails 64 'missing: shape: one of tiny, 3b, 7b, qwen2-vl-2b' init "$work/x" --tokenizer "$work/a"
fails 64 '--train-tokenizer' init "$work/x" --shape tiny
fails 64 'float64' init "$work/x" --shape tiny --dtype float64 --tokenizer "$work/a"
fails 65 'nowhere' init "$work/x" --shape tiny --train-tokenizer "$work/nowhere"
fails 65 'tokenizer.json' init "$work/x" --shape tiny --tokenizer "$work"
head -c 300 /dev/urandom > "$work/noise"
fails 65 'UTF-8' init "$work/x" --shape tiny --train-tokenizer "$work/noise"
sed 's/"hidden_size": 128/"hidden_size": 130/' "$work/a/config.json" > "$work/odd.json"
fails 65 'odd.json' init "$work/x" --shape "$work/odd.json" --tokenizer "$work/a"
sed 's/"vocab_size": [0-9]*/"vocab_size": 300/' "$work/a/config.json" > "$work/small.json"
fails 65 'vocab_size' init "$work/x" --shape "$work/small.json" --tokenizer "$work/a"
init "$work/e" --shape "$work/small.json" --train-tokenizer README.md
echo ok
