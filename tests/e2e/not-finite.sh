# Numbers that are not finite: optim ends at the first step that has one, names the step and the groups, saves nothing of
# its weights and leaves the last checkpoint whose numbers were finite, whatever `keep` says. The run ends with it. A sampler
# without optim quarantines.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/run-helpers.sh"
make_tiny_model
cd "$work"
for i in $(seq 8); do
    echo "{\"v\":1,\"id\":\"$i\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":\"What is $i?\"}],\"solution\":\"<answer>x</answer>\"},\"completions\":[{\"text\":\"It is $i.\",\"finish\":\"eos\"}],\"advantages\":[1]}"
done >groups
optim() { "$bin/caravan-optim" --stdio --model model --groups-per-step 2 --threads 1 --save-every 1 "$@"; }
# poison FILE NAME: makes the first number of the tensor NAME in a safetensors file of float32 NaN.
poison() {
    length=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
    offset=$(head -c $((8 + length)) "$1" | grep -ao "\"$2\":{[^}]*}" | sed 's/.*data_offsets":\[\([0-9]*\),.*/\1/')
    printf '\0\0\300\177' | dd of="$1" bs=1 seek=$((8 + length + offset)) conv=notrunc status=none
}
norm=$(head -c 100000 model/model.safetensors | grep -ao '"model\.[a-z_.]*norm\.weight"' | head -1 | tr -d '"')
cp -r model nan
poison nan/model.safetensors "$norm"

trained() { optim "${@:2}" <"$1"; } # FILE OPTION...
expect 65 '' trained groups --model nan --out none
[ "$(tail -1 err)" = "caravan-optim: step 1: group 1: the log-probabilities are not finite. It has the weights of $work/nan" ] ||
    fail "a NaN in the weights: $(cat err)"
[ ! -s out ] && [ "$(ls none)" = "" ] || fail "a step is trained or saved: $(ls none)"

# Weights that went bad in step 3, as their checkpoint shows: the one before it stays, whatever `keep` says, until a step was
# trained from a newer one.
head -6 groups | optim --out bad --lr 1e-3 --schedule constant >out 2>err || fail "optim: $(cat err)"
rm -r bad/step-000001
poison bad/step-000003/training.safetensors "master.$norm"
tail -2 groups >two
for turn in 1 2; do
    expect 65 "step 4: group 7: the log-probabilities are not finite. The checkpoint of step 3 has its weights: to go on from an older one, remove bad/step-000003$" \
        trained two --out bad --keep 1
    [ "$(cd bad && echo step-*)" = "step-000002 step-000003" ] || fail "kept of a bad training: $(ls bad)"
done
rm -r bad/step-000003
tail -4 groups | optim --out bad --keep 1 --lr 1e-3 --schedule constant >out 2>err || fail "goes on: $(cat err)"
[ "$(cd bad && echo step-*)" = step-000004 ] || fail "kept at the end: $(ls bad)"

# last_step_of FILE: the step that its refusal names.
last_step_of() { sed -n 's/.*step \([0-9]*\): groups* .* not finite\. The checkpoint of step.*/\1/p' "$1"; }
# kept_after DIR STEP: it must have the checkpoints of the two steps before that one.
kept_after() {
    [ "$(cd "$1" && echo step-*)" = "$(printf 'step-%06d step-%06d' $(($2 - 2)) $(($2 - 1)))" ] || fail "kept before step $2: $(ls "$1")"
}
# A rate that ruins the weights within a few steps.
for i in 1 2 3; do cat groups; done >many
expect 65 '' trained many --out ruined --keep 1 --lr 1e6 --schedule constant
step=$(last_step_of err)
[ "${step:-0}" -ge 3 ] || fail "a ruinous rate: $(cat err)"
kept_after ruined $step
[ "$(grep -c '"trained":' out)" = $((2 * step - 2)) ] || fail "what left before step $step: $(cat out)"

# In a pipeline the run ends at once, whether the weights are the model's or became so.
make_numbers 8
make_program force "exec sed -u '$force'"
cat >p.yaml <<END
run: run
model: model
seed: 7
threads: 1
precision: float32
stages:
  - source: {data: data.jsonl, template: none, group_size: 2, groups_per_step: 2, epochs: 3}
  - rollout: {max_new_tokens: 4}
  - refscore: {}
  - reward: {}
  - force: {program: ./force.sh}
  - optim: {lr: 1.0e-3, schedule: constant, ema_every: 1, save_every: 1, keep: 1}
END
refused() { # NAME OPTION...
    got=0
    run "$@" || got=$?
    [ $got = 65 ] || fail "$1: exit $got: $(cat $1.err)"
    ! grep "starting it again" $1.err || fail "$1: a process is started again"
}
refused poisoned --set model=nan
grep -q "step 1: group e0-0000.*: the log-probabilities.* are not finite. It has the weights of $work/nan" poisoned.err || fail "poisoned: $(cat poisoned.err)"
[ "$(ls poisoned/checkpoints)" = "" ] || fail "a checkpoint of a step that was not trained: $(ls poisoned/checkpoints)"
refused went --set optim.lr=1e6
step=$(last_step_of went.err)
[ "${step:-0}" -ge 3 ] || fail "went: $(cat went.err)"
kept_after went/checkpoints $step

# Without optim nobody would end it: the sampler quarantines such groups.
"$bin/caravan-source" --stdio --data data.jsonl --template none --limit 1 2>err | "$bin/caravan-rollout" --stdio --model nan --group-size 2 --max-new-tokens 4 --threads 1 >out 2>err ||
    fail "rollout: $(cat err)"
grep -q '"quarantine":{"stage":"rollout","reason":"the log-probability of token 0 of completion 0 is not finite"}' out || fail "rollout: $(cat out)"
