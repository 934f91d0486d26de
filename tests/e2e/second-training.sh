# A training that starts from another one's checkpoint is a new training from its weights: each kind after each kind ends
# with the weights of the same training from a copy of the folder that has no training state. A training goes on from its
# own checkpoints alone.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/run-helpers.sh"
make_tiny_model
cd "$work"
make_numbers 4
make_program force "exec sed -u '$force'"

# care: a reference that follows the policy; frozen: the model that the training starts from; none: no reference.
for kind in care frozen none; do
    cat >$kind.yaml <<END
run: run
model: model
seed: 7
threads: 1
precision: float32
stages:
  - source: {data: data.jsonl, template: none, group_size: 2, groups_per_step: 2}
  - rollout: {max_new_tokens: 4}
$(if [ $kind != none ]; then echo "  - refscore: {}"; fi)
  - reward: {method: $(case $kind in care) echo care ;; frozen) echo grpo ;; none) echo nokl ;; esac)}
  - force: {program: ./force.sh}
  - optim: {lr: 1.0e-3$(if [ $kind = care ]; then echo ", ema_every: 1"; fi)}
END
done
# train KIND RUN MODEL OPTION...: trains in the directory RUN.
train() {
    kind=$1 run=$2 model=$3
    shift 3
    timeout -k 10 120 "$bin/caravan" run $kind.yaml --set run=$run --set model=$model "$@" 2>$run.err ||
        fail "$run: $(cat $run.err)"
    check_steps $run 2
}
for first in care frozen none; do
    train $first $first model
    grep -q "optim: new training from the weights of $(realpath model)$" $first.err || fail "$first: $(cat $first.err)"
    mkdir $first-bare
    for file in $first/checkpoints/latest/*; do
        case ${file##*/} in progress | training*) ;; *) cp "$file" $first-bare ;; esac
    done
    for second in care frozen none; do
        train $second $second-after-$first $first/checkpoints/latest
        train $second $second-after-$first-bare $first-bare
        [ "$(weights_of $second-after-$first)" = "$(weights_of $second-after-$first-bare)" ] ||
            fail "$second after $first trains other weights than from the weights alone"
        [ "$(weights_of $second-after-$first)" != "$(weights_of $first)" ] || fail "$second after $first trains nothing"
        grep -q "new training from the weights of .*/$first/checkpoints/step-000002$" $second-after-$first.err ||
            fail "$second after $first: $(cat $second-after-$first.err)"
    done
done

# The same command goes on from the run's own checkpoint. A state of the same step, which a crash left over, goes.
want=$(weights_of care)
mkdir care/checkpoints/state-000002
cp care/checkpoints/step-000002/progress care/checkpoints/step-000002/training* care/checkpoints/state-000002
train care care model
grep -q "optim: resumes at step 2 from .*/care/checkpoints/step-000002$" care.err || fail "again: $(cat care.err)"
[ "$(weights_of care)" = "$want" ] || fail "a finished run is trained again"
[ ! -e care/checkpoints/state-000002 ] || fail "a state beside the checkpoint of its step is left over"

# Another model than the one that the training began with is refused; that model in another place or precision is not.
expect 65 "began with the model $(realpath model) (hash [0-9a-f]\{16\}), but $(realpath care-bare) has other weights (hash " \
    "$bin/caravan" run care.yaml --set run=care --set model=care-bare
if grep "starting it again" err; then fail "a refused run went on"; fi
[ "$(weights_of care)" = "$want" ] || fail "a refused run changes the weights"
cp -r model moved
train care care moved --set optim.precision=bfloat16
# A filter goes on by its own --out, and may be given one of its checkpoints.
for i in $(seq 3); do
    echo "{\"v\":1,\"id\":\"$i\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":\"What is $i?\"}],\"solution\":\"<answer>x</answer>\"},\"completions\":[{\"text\":\"It is $i.\",\"finish\":\"eos\"}],\"advantages\":[1]}"
done >groups
optim() { "$bin/caravan-optim" --stdio --groups-per-step 1 --steps 3 --lr 1e-3 --threads 1 --save-every 1 "$@" >out 2>err; }
optim --model model --out whole <groups || fail "optim: $(cat err)"
head -1 groups | optim --model model --out parts || fail "optim: $(cat err)"
sed -n 2p groups | optim --model parts/latest --out parts || fail "from its own checkpoint: $(cat err)"
tail -1 groups | optim --model parts/step-000001 --out parts || fail "from an older checkpoint: $(cat err)"
cmp whole/step-000003/model.safetensors parts/step-000003/model.safetensors || fail "a resumed filter trains other weights"
expect 65 "began with the model" optim --model care-bare --out parts
optim --model parts/step-000002 --out other <groups || fail "a new training: $(cat err)"
if grep -q resumes err || [ ! -d other/step-000003 ]; then fail "other: $(cat err)"; fi
