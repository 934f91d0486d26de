#!/bin/sh
# caravan check finds no mistake in the pipeline files of this repository but missing files and keys, which a user provides.
# It finds every mistake in a bad file and names its line and column. caravan plan adds up a GPU's memory.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for file in pipelines/*.yaml pipelines/*/*.yaml; do
    "$BIN/caravan" check "$file" >"$work/out" 2>&1 && continue
    if grep -v 'No such file or directory\(; to have the released model there: hf download Qwen/.*\)\{0,1\}$' "$work/out" | grep -v ': missing: key; type' | grep -v "^caravan: $file: [0-9]* mistakes*$"; then
        echo "$file has mistakes"
        exit 1
    fi
done

# A page that a comment names has the section that it names.
grep -ohE '[a-zA-Z/]*(README|MANUAL)\.md, "[^"]*"' pipelines/*.yaml pipelines/*/*.yaml | sort -u >"$work/pages"
[ -s "$work/pages" ]
while IFS= read -r line; do
    section=${line#*\"}
    grep -qx "## ${section%\"}" "${line%%,*}" || { echo "there is no section $line" && exit 1; }
done <"$work/pages"

# published FILE SETTING...: the file has these settings of the published runs.
published() {
    file=pipelines/$1
    shift
    for setting; do
        grep -q "^ *$setting\( .*\)\{0,1\}\$" "$file" || { echo "$file has no $setting" && exit 1; }
    done
}
published seed-bench-r1-care.yaml 'margin: none'
published seed-bench-r1-care-margin.yaml 'margin: 0.01' 'format: seed-bench-r1'
for file in sft-seed-bench-r1.yaml sft-video-r1.yaml; do
    published $file 'groups_per_step: 128' 'lr: 2.0e-5' 'weight_decay: 0' 'clip_norm: 1' 'warmup_ratio: 0.1' 'loss: tokens'
done
# On four GPUs they are those of one.
settings() { sed '1,/^stages:/d; /^ *\(ranks\|device\|publish\): /d' "pipelines/$1"; }
[ "$(settings seed-bench-r1-care-4-gpus.yaml)" = "$(settings seed-bench-r1-care.yaml)" ]
published eval/mvbench.yaml 'frame_records: released' 'clip: whole'
if grep -n 'data: .*seed-bench-r1/[^/]*$' pipelines/*.yaml pipelines/*/*.yaml; then echo "without annotations/" && exit 1; fi

# No two files share a run's directory.
[ -z "$(sed -n 's#^run: [./]*##p' pipelines/*.yaml pipelines/*/*.yaml | sort | uniq -d)" ]

# The unit for systemd has no mistakes either, with a user and a path that exist.
if command -v systemd-analyze >/dev/null; then
    sed "s#^User=.*#User=root#; s#^ExecStart=#&$(realpath "$BIN")/#" pipelines/systemd/caravan@.service >"$work/caravan@demo.service"
    systemd-analyze verify "$work/caravan@demo.service" >"$work/out" 2>&1 || true
    if grep caravan "$work/out"; then
        echo "the unit has mistakes"
        exit 1
    fi
fi

"$BIN/caravan" init "$work/model" --shape tiny --train-tokenizer README.md --vocab-size 400
mkdir "$work/data"
for number in 1 2 3 4; do
    printf '{"id":"%s","prompt":{"messages":[],"problem_type":"OCR","solution":"<answer>x</answer>"}}\n' $number
done >"$work/data/train.jsonl"
cat >"$work/good.yaml" <<END
run: runs/good
model: model
stages:
  - source: {data: data/train.jsonl}
  - frames: {replicas: 2}
  - rollout: {}
  - refscore: {}
  - mine: {program: cat}
  - reward: {}
  - optim: {}
END
"$BIN/caravan" check "$work/good.yaml" | grep -q 'no mistakes: good, 7 stages in 8 processes'
"$BIN/caravan" graph "$work/good.yaml" | grep -q '"mine" -> "reward"'
"$BIN/caravan" graph --text "$work/good.yaml" | grep -q 'frames x2'

# The machines and ports of a cluster. keygen prints the line to write, and where the secret is; the public key stands
# alone on standard output. Machines need keys of the right form.
key=$("$BIN/caravan" keygen "$work/machine.key" 2>"$work/err")
[ ${#key} = 40 ] && grep -qxF "    key: \"$key\"" "$work/err" && grep -qF "the secret key is in $work/machine.key;" "$work/err"
code=0
program=$(realpath "$BIN/caravan")
(cd "$work" && env -u HOME -u XDG_CONFIG_HOME "$program" keygen) 2>"$work/err" || code=$?
[ "$code" = 64 ] && grep -q 'HOME is not set: say where to write it: caravan keygen FILE$' "$work/err" && [ ! -e "$work/.config" ]
cat >"$work/cluster.yaml" <<END
run: runs/cluster
model: model
stages: [source: {data: data/train.jsonl}, rollout: {replicas: 4, on: pool}, score: {on: a}]
machines:
  a: {address: 10.0.0.1, port: 7000, key: "$key"}
  gpu[01-16]: {address: "10.0.1.[1-16]", key: "$key"}
machine_groups: {pool: "gpu[01-16]"}
END
"$BIN/caravan" check "$work/cluster.yaml" >"$work/out"
grep -q 'no mistakes: cluster, 3 stages in 66 processes' "$work/out"
grep -qx 'a        10.0.0.1   7000, 7064, 7192' "$work/out"
grep -qx 'gpu16    10.0.1.16  5600, 5728-5731' "$work/out"

sed -e 's/, key: "[^"]*"}$/, key: short}/' -e '/^  a:/s/, key: short//' "$work/cluster.yaml" >"$work/keys.yaml"
code=0
"$BIN/caravan" check "$work/keys.yaml" 2>"$work/err" || code=$?
[ "$code" = 65 ] && grep -q "keys.yaml:5:3: a: missing: key; type caravan keygen" "$work/err"
grep -q "keys.yaml:6:49: gpu01: key: 'short' is not a public key" "$work/err" && grep -q ': 2 mistakes$' "$work/err"

cat >"$work/bad.yaml" <<END
runs: runs/bad
model: nowhere
stages:
  - source: {data: data/none.jsonl, format: csv}
  - frames: {replicas: many, fps: -1}
  - rollout: {on: mars, temprature: 1}
  - refscore: {span: [content]}
  - reward: {method: care, margin: much}
  - optim: {lr: fast, from: rewards}
END
code=0
"$BIN/caravan" check "$work/bad.yaml" 2>"$work/out" || code=$?
[ "$code" = 65 ]
[ "$(grep -c "^$work/bad.yaml:[0-9]*:[0-9]*: " "$work/out")" = 13 ]

code=0
"$BIN/caravan" check "$work/good.yaml" --set frames.fps=0 2>"$work/out" || code=$?
[ "$code" = 64 ]
"$BIN/caravan" graph "$work/good.yaml" --set 'rollout.device=cuda:[0-7]' >"$work/out"
code=0
"$BIN/caravan" check "$work/good.yaml" --set 'rollout.device=cuda:[7-0]' 2>"$work/out" || code=$?
[ "$code" = 64 ]
"$BIN/caravan" check "$work/good.yaml" --set frames.store_limit=20GiB >"$work/out"
"$BIN/caravan" check "$work/good.yaml" --set frames.store_limit=20G 2>"$work/out" && exit 1
grep -q "store_limit: '20G' is not a size in bytes such as 20GiB" "$work/out"

# The published 3B shape in bfloat16: 3.75 G parameters of 2 bytes each. What does not fit is 65, with what to change.
cat >"$work/model/config.json" <<END
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_act": "silu",
 "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
 "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "vocab_size": 151936,
 "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "tie_word_embeddings": true,
 "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
 "vision_config": {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
  "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
  "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2}}
END
set -- "$work/good.yaml" --set rollout.max_prompt_tokens=2500 --set optim.ema_every=10 --set optim.publish=files
"$BIN/caravan" plan "$@" --gpu h100 >"$work/out"
[ "$(grep -c '^      7\.51  weights$' "$work/out")" = 3 ]
grep -q '^     15\.02  reference$' "$work/out"
grep -q '^together 8[0-4]\.[0-9]* of 85\.52 GB$' "$work/out"
# Where rollout and refscore use optim's weights, there is one copy of them.
"$BIN/caravan" plan "$work/good.yaml" --gpu h100 --set rollout.max_prompt_tokens=2500 --set optim.publish=lend >"$work/out"
[ "$(grep -c '^      7\.51  weights$' "$work/out")" = 1 ]
# Replicas on GPUs of their own: each has one copy, and the fifth one shares the first one's GPU.
"$BIN/caravan" plan "$@" --gpu h100 --set 'rollout.device=cuda:[1-4]' --set rollout.replicas=5 >"$work/out"
[ "$(grep -c '^cuda:[1-4]$' "$work/out")" = 4 ] && [ "$(grep -c '^cuda$' "$work/out")" = 1 ]
[ "$(grep -c '^rollout: .* GB$' "$work/out")" = 3 ] && [ "$(grep -c '^rollout: .* GB, 2 times$' "$work/out")" = 1 ]
# A consistency model of ModernBERT-large's shape, twice: 395,833,346 parameters of 2 bytes, or of 4, and a pass of 8192 rows.
mkdir "$work/bert"
printf '{"model_type": "modernbert", "hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16, "id2label": {"0": "inconsistent", "1": "consistent"}}' \
    >"$work/bert/config.json"
sed 's/^  - reward: {}/  - consistency: {model: bert, replicas: 2}\n  - reward: {method: cora}/; /refscore/d' "$work/good.yaml" >"$work/cora.yaml"
set -- "$work/cora.yaml" --set rollout.max_prompt_tokens=2500 --set optim.ema_every=0 --gpu h100
"$BIN/caravan" plan "$@" >"$work/out"
grep -q '^consistency: 1\.7[0-9] GB, 2 times$' "$work/out"
grep -q '^      0\.79  weights$' "$work/out"
"$BIN/caravan" plan "$@" --set consistency.precision=float32 --set 'consistency.device=cuda:[0-1]' >"$work/out"
grep -q '^      1\.58  weights$' "$work/out"
[ "$(grep -c '^consistency: 2\.[0-9]* GB$' "$work/out")" = 2 ] && grep -q '^cuda:1$' "$work/out"
code=0
"$BIN/caravan" plan "$@" --set consistency.max_tokens=1000000 >"$work/out" 2>&1 || code=$?
[ "$code" = 65 ]
grep -q '[0-9]  consistency\.max_tokens: [0-9]*, and then it fits$' "$work/out"
"$BIN/caravan" plan "$@" --set consistency.device=cpu >"$work/out"
if sed '/^cpu$/,$d' "$work/out" | grep consistency; then exit 1; fi
sed '1,/^cpu$/d' "$work/out" | grep -q '^consistency: [2-9]\.[0-9]* GB, 2 times$'
set -- "$work/good.yaml" --set rollout.max_prompt_tokens=2500 --set optim.ema_every=10 --set optim.publish=files
mkdir "$work/7b"
sed -e 's/"hidden_size": 2048/"hidden_size": 3584/; s/11008/18944/; s/"num_hidden_layers": 36, "num_attention_heads": 16/"num_hidden_layers": 28, "num_attention_heads": 28/' \
    -e 's/"num_key_value_heads": 2/"num_key_value_heads": 4/; s/151936/152064/; s/"tie_word_embeddings": true/"tie_word_embeddings": false/' \
    -e 's/"out_hidden_size": 2048/"out_hidden_size": 3584/' "$work/model/config.json" >"$work/7b/config.json"
data="--set source.data=$work/data/train.jsonl --set source.media_root=$work/data"
# Every training of 3B and 7B in this repository names a GPU, fits on it, and keeps few checkpoints.
for file in pipelines/*.yaml pipelines/*/*.yaml; do
    case $file in pipelines/miniature/*) continue ;; esac
    nodes=$(sed -n "s#^\# *SLURM_JOB_NODELIST='\(.*\)' caravan plan .*#\1#p" "$file")
    gpu=$(sed -n "s#^\# *\(SLURM_JOB_NODELIST='.*' \)\{0,1\}caravan plan *$file --gpu \([a-z0-9]*\)\$#\2#p" "$file")
    if grep -q '^  - optim:' "$file"; then
        grep -q 'save_every: [0-9]' "$file" && grep -q 'keep: 2' "$file" || { echo "$file keeps all checkpoints" && exit 1; }
        [ "$gpu" ] || { echo "$file names no GPU" && exit 1; }
    fi
    [ "$gpu" ] || continue
    model=3b
    if grep -q '^model: .*-7B-' "$file"; then model=7b; fi
    set -- "$file" --gpu "$gpu" --set "model=$model" # neither model nor data are here
    if grep -q 'models/consistency' "$file"; then set -- "$@" --set consistency.model=modernbert-large; fi
    env ${nodes:+"SLURM_JOB_NODELIST=$nodes"} "$BIN/caravan" plan "$@" >"$work/out" 2>&1 || { echo "$file does not fit on $gpu" && cat "$work/out" && exit 1; }
    grep -q '^together .* GB$' "$work/out"
done
for page in README.md MANUAL.md; do # so does their example
    file=$(sed -n 's#^ *cp \(pipelines/[^ ]*\) my-run.yaml .*#\1#p' $page)
    gpu=$(sed -n 's#.*caravan plan my-run.yaml --gpu \([a-z0-9]*\) .*#\1#p' $page)
    "$BIN/caravan" plan "$file" --gpu "$gpu" --set model=7b >"$work/out" 2>&1 || { echo "$page: $file does not fit on $gpu" && exit 1; }
done
set -- "$work/good.yaml" --set rollout.max_prompt_tokens=2500 --set optim.ema_every=10 --set optim.publish=files
"$BIN/caravan" plan pipelines/seed-bench-r1-care-3b.yaml --gpu h100 --set model="$work/model" $data | grep -q '^together 6[0-9]\.'
"$BIN/caravan" plan pipelines/seed-bench-r1-care.yaml --gpu h200 --set model="$work/7b" $data >"$work/out"
grep -q '^     16\.5[0-9]  weights$' "$work/out"
grep -q '^together 13[0-9]\.[0-9]* of 150\.75 GB$' "$work/out"
code=0
"$BIN/caravan" plan "$@" --gpu h100 --set optim.moment_precision=float32 >"$work/out" 2>&1 || code=$?
[ "$code" = 65 ]
grep -q '^     15\.0[0-9]  optim\.moment_precision: bfloat16, and then it fits$' "$work/out"
"$BIN/caravan" plan "$@" --gpu 10 --set rollout.device=cpu --set refscore.device=cpu --set optim.device=cpu >"$work/out"
grep -q '^no stage computes on a GPU$' "$work/out"
code=0
for gpu in 24GB:24.00 80GiB:85.90 a100:85.90 l40s:48.31 4090:25.76 1000000000:1.00; do
    "$BIN/caravan" plan "$@" --gpu "${gpu%:*}" >"$work/out" 2>&1 || true
    grep -q "^together .* of ${gpu#*:} GB\$" "$work/out"
done

# The numbers that are named fit, and the next round ones do not.
set -- pipelines/seed-bench-r1-care-3b.yaml --set model=3b --gpu h100
for case in rollout.max_prompt_tokens:256:16384 rollout.max_new_tokens:64:8192; do
    key=${case%%:*} round=${case#*:}
    code=0
    "$BIN/caravan" plan "$@" --set "$key=${round#*:}" >"$work/out" 2>"$work/err" || code=$?
    value=$(sed -n "s/^ *[0-9.]*  $key: \([0-9]*\), and then it fits\$/\1/p" "$work/out")
    [ "$code" = 65 ] && grep -q "; it fits with rollout\.max_[a-z_]*: [0-9]*\$" "$work/err"
    "$BIN/caravan" plan "$@" --set "$key=$value" >"$work/out"
    if "$BIN/caravan" plan "$@" --set "$key=$((value + ${round%:*}))" >"$work/out" 2>&1; then exit 1; fi
done

# The lines in MANUAL.md are some of those that are printed.
grep -qxF '    $ caravan plan pipelines/seed-bench-r1-care-3b.yaml --gpu h100 --set model=3b' MANUAL.md
"$BIN/caravan" plan "$@" >"$work/out"
sed '1,/^    \$ caravan plan pipelines/d; /^$/,$d; s/^    //' MANUAL.md >"$work/lines"
[ "$(grep -cxFf "$work/lines" "$work/out")" = "$(grep -c . "$work/lines")" ]

# So are those in SEVERAL-GPUS.md, and so is its table of ranks: of a rank, and of the first GPU.
four=pipelines/seed-bench-r1-care-4-gpus.yaml
"$BIN/caravan" plan $four --gpu h100 --set model=7b >"$work/out"
sed "1,/^    \$ caravan plan ${four//\//\\/} --gpu h100 --set model=7b\$/d; /^$/,\$d; s/^    //" SEVERAL-GPUS.md >"$work/lines"
[ "$(grep -xFf "$work/lines" "$work/out" | sort -u | grep -c .)" = "$(grep -c . "$work/lines")" ]
for ranks in 1 2 3 4 8; do
    for model in 3b 7b; do
        "$BIN/caravan" plan $four --gpu 141GB --set model=$model --set optim.ranks=$ranks --set "optim.device=cuda:[0-$((ranks - 1))]" |
            sed -n 's/^optim.*: \([0-9.]*\) GB$/\1/p; s/^together \([0-9.]*\) of .*/\1/p' | head -n 2
    done | xargs printf "| $ranks | %s | %s | %s | %s |\n" >"$work/row"
    grep -qxFf "$work/row" SEVERAL-GPUS.md || { echo "not in SEVERAL-GPUS.md: $(cat "$work/row")" && exit 1; }
done

lora="pipelines/seed-bench-r1-lora-3b.yaml --gpu 4090 --set model=3b"
"$BIN/caravan" plan $lora >"$work/out"
sed "1,/^    \$ caravan plan ${lora//\//\\/}\$/d; /^$/,\$d; s/^    //" MANUAL.md >"$work/lines"
[ "$(grep -cxFf "$work/lines" "$work/out")" = 5 ]
# Where weights are lent or copied, the base is on the GPU once: 7B fits 40 GB. From files each process has its own.
lora="pipelines/seed-bench-r1-lora-3b.yaml --gpu a100-40gb --set model=7b"
for publish in lend copy; do "$BIN/caravan" plan $lora --set optim.publish=$publish | grep -q '^together 3[12]\.[0-9]* of 42\.95 GB$'; done
code=0
"$BIN/caravan" plan $lora --set optim.publish=files >"$work/out" 2>&1 || code=$?
[ "$code" = 65 ]

# A shape stands for a model: its name, or a config.json. Without one, the names are listed.
"$BIN/caravan" plan "$@" >"$work/out"
"$BIN/caravan" plan "$@" --set model="$work/model" | cmp - "$work/out"
"$BIN/caravan" plan "$@" --set model="$work/model/config.json" | cmp - "$work/out"
code=0
"$BIN/caravan" plan pipelines/seed-bench-r1-care-3b.yaml --gpu h100 >"$work/out" 2>"$work/err" || code=$?
[ "$code" = 65 ] && grep -q 'models/Qwen2.5-VL-3B-Instruct: No such file or directory; .* tiny, 3b, 7b, ' "$work/err" && [ ! -s "$work/out" ]

# Several GPUs: the processes are spread over them, and optim is not divided. What is printed can be set.
"$BIN/caravan" plan "$@" --gpus 2 >"$work/out"
grep -qx "  --set 'optim.device=cuda:0'" "$work/out" && grep -qx "  --set 'rollout.device=cuda:1'" "$work/out"
[ "$(sed -n '/^cuda:1$/,/^together/s/:.*//p' "$work/out" | xargs)" = "cuda rollout refscore" ]
[ "$(sed -n '/^cuda$/,/^together/s/:.*//p' "$work/out" | xargs)" = "optim" ]
grep -q '^optim is one process on one GPU: optim.ranks shares its work among several$' "$work/out"
"$BIN/caravan" plan "$@" --set optim.device=cuda:0 --set rollout.device=cuda:1 --set refscore.device=cuda:1 | cmp - <<END
$(sed '/^spread/d; /^  --set/d; /^optim is one/d' "$work/out")
END
"$BIN/caravan" plan "$@" --gpus 4 | grep -qxF "  --set rollout.replicas=2  --set 'rollout.device=cuda:[1,3]'"
"$BIN/caravan" plan pipelines/two-machines.yaml --set model=3b --gpu h100 --gpus 2 | grep -qx 'cuda:1 of sampler'
# Its ranks are, each on a GPU of its own.
"$BIN/caravan" plan "$@" --gpus 4 --set optim.ranks=2 >"$work/out"
grep -qxF "  --set 'optim.device=cuda:[0,1]'" "$work/out" && ! grep -q 'ranks shares its work\|optim.replicas' "$work/out"
[ "$(grep -c '^optim, one of 2 ranks: [0-9.]* GB$' "$work/out")" = 2 ]
"$BIN/caravan" plan pipelines/seed-bench-r1-care.yaml --set model=7b --gpu h100 --gpus 4 --set optim.ranks=4 >"$work/out" || [ $? = 65 ]
grep -qxF "$(sed -n 's/^    \(optim, one of 4 ranks: .*\)/\1/p' MANUAL.md)" "$work/out"
# Two ranks would not share a GPU, and where they have too little room more of them would help.
for device in "" "cuda:0" "cuda:[0-1]"; do
    code=0
    "$BIN/caravan" plan "$@" --set optim.ranks=4 ${device:+--set optim.device=$device} >"$work/out" 2>"$work/err" || code=$?
    [ "$code" = 65 ] && grep -q '^caravan: optim.device: 4 ranks would share cuda.*: each needs a GPU of its own' "$work/err" && [ ! -s "$work/out" ]
done
"$BIN/caravan" plan pipelines/seed-bench-r1-care.yaml --set model=7b --gpu a100-40gb --gpus 3 --set optim.ranks=3 >"$work/out" || [ $? = 65 ]
grep -qxF 'or give a stage another GPU, with `device` (--gpus 3 shows how) or `on`' "$work/out"
grep -qxF "or share optim's arrays among more GPUs, with optim.ranks and --gpus" "$work/out"
for wrong in "--gpus 2 --set rollout.device=cuda:2" "--gpus 0" "--gpus 2 --set optim.ranks=3"; do
    code=0
    "$BIN/caravan" plan "$@" $wrong >"$work/out" 2>"$work/err" || code=$?
    [ "$code" = 64 ] && grep -q 'gpus' "$work/err"
done

# Outside a job there is one node, as plan says; in one, or with its nodes named, there are all of them.
slurm="pipelines/video-r1-care-slurm.yaml --gpu h100 --set model=7b"
code=0
env -u SLURM_JOB_NODELIST "$BIN/caravan" plan $slurm >"$work/out" 2>"$work/err" || code=$?
[ "$code" = 65 ] && grep -q '^caravan: outside a Slurm job all stages are counted on one node' "$work/err"
SLURM_JOB_NODELIST='n[1-2]' "$BIN/caravan" plan $slurm >"$work/out" 2>"$work/err"
grep -qx 'cuda of n1' "$work/out" && ! grep -q . "$work/err"

# Groups that are given: their longest is assumed, or said. A rollout says it itself.
set -- pipelines/sft-video-r1.yaml --set model=7b --gpu h200
sum() { "$BIN/caravan" plan "$@" | sed -n 's/^together \([0-9]*\)\.\([0-9]*\) of .*/\1\2/p'; }
[ "$(sum "$@")" = "$(sum "$@" --prompt-tokens 2099 --completion-tokens 1024 --group-size 1)" ]
[ "$(sum "$@" --completion-tokens 4096)" -gt "$(sum "$@")" ] && [ "$(sum "$@" --group-size 2)" -gt "$(sum "$@")" ]
[ "$(sum "$@" --set frames.max_frames=64)" -gt "$(sum "$@")" ]
code=0
"$BIN/caravan" plan pipelines/cora.yaml --set model=7b --gpu h200 --group-size 2 2>"$work/err" || code=$?
[ "$code" = 64 ] && grep -q 'rollout says how long a group may be' "$work/err"

# The disk. On a GPU a checkpoint of 3B has 14 bytes for each of 3,754,622,976 parameters: the model 2, the weights in
# float32 4, two moments 4, the reference 4. Without `keep` all stay.
set -- pipelines/seed-bench-r1-care-3b.yaml --set model=3b --gpu h100
disk() { "$BIN/caravan" plan "$@" | sed '1,/^disk$/d' >"$work/out"; }
disk "$@"
grep -qx '    157\.7[0-9]  checkpoints: 3 of 52\.57 GB at a time' "$work/out"
if grep weights "$work/out"; then exit 1; fi # rollout and refscore use optim's
disk "$@" --set optim.keep=0 --set source.max_steps=950
grep -q '^    525\.[67][0-9]  checkpoints: 10 of 52\.57 GB' "$work/out"
disk "$@" --set optim.keep=0
grep -q '^     52\.57  each checkpoint, and all stay: optim\.keep says how many$' "$work/out"
disk "$@" --set optim.publish=files --set optim.moment_precision=float32 --set frames.store_limit=20GiB
grep -q 'checkpoints: 3 of 67\.58 GB' "$work/out" && grep -q '  weights: 6 files of 7\.51 GB$' "$work/out"
grep -qx '     21.47  frames of the store, by store_limit' "$work/out"
# On the CPU: in float32, 20 bytes with the reference, and the gradients of a group; the model directory's have 2 of them as bfloat16.
"$BIN/caravan" plan pipelines/seed-bench-r1-care-3b.yaml --set model=3b --set rollout.device=cpu --set refscore.device=cpu --set optim.device=cpu --set precision=float32 >"$work/out"
grep -q '^no stage computes on a GPU$' "$work/out" && grep -q 'checkpoints: 3 of 67\.58 GB' "$work/out"
[ "$(sed -n '/^optim: /,/^  .*reference$/p' "$work/out" | awk '/weights|gradients|moments|reference/ {sum += $1} END {printf "%.0f", sum}')" = 79 ]
code=0
"$BIN/caravan" plan "$@" --gpu h300 2>"$work/out" || code=$?
[ "$code" = 64 ]
