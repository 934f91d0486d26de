# caravan replay: on a small training every stage says the same again, to the bit, as far as its weights are left; with
# another threshold exactly those groups differ whose rewards another program finds different; and bad input is refused
# before anything runs.
. "$(dirname "$0")/common.sh"

run=$work/run
make_program note 'while read -r line; do
    case $line in *\"note\"*) echo "it has a note" >&2; exit 3 ;; esac
    [ ! -e '"$work"'/broken ] || exit 4
    printf "%s\n" "${line%\}},\"note\":{\"length\":$2,\"where\":\"$(basename "$PWD")\"}}"
done'
"$bin/caravan" draw "$work/data" --training 7 --validation 1 --warm-up 1 --letters 0 --rules 0 --review 0 --pretraining 0
"$bin/caravan" init "$work/bert" --shape modernbert-tiny --train-tokenizer "$work/data/text.txt" 2>"$work/err"
mkdir "$work/files"
cp -r pipelines/miniature/start "$work/model"
cat >"$work/files/run.yaml" <<END
name: replay
run: $run
model: $work/model
seed: 7
stages:
  - source: {data: $work/data/annotations/training_6k.jsonl, format: seed-bench-r1, template: none, media_root: $work/data, limit: 20}
  - frames: {min_pixels: 3136, max_pixels: 3136, image_min_pixels: 3136, image_max_pixels: 3136}
  - rollout: {max_new_tokens: 48, threads: 1}
  - refscore: {threads: 1}
  - consistency: {model: $work/bert, threads: 1}
  - note: {program: $work/note.sh, length: 4}
  - reward: {method: care}
  - score: {}
  - judge: {}
  - optim: {lr: 2.0e-4, ema_every: 2, save_every: 4, threads: 1}
END
"$bin/caravan" run "$work/files/run.yaml" 2>"$work/err" || fail "the run: $(cat "$work/err")"
[ "$("$bin/caravan" groups ls "$run" | grep -c " trained ")" = 20 ] || fail "the run: $("$bin/caravan" groups ls "$run")"
replay() { "$bin/caravan" replay "$@" 2>"$work/err" </dev/null; }
files() { (cd "$run" && find . -type f ! -name '*.lmdb-lock' ! -path './store/frames.lmdb' -exec sha256sum {} + | sort); }
files >"$work/before"
frames() { "$bin/caravan" frames ls "$run" | sort; }
frames >"$work/frames"

# ---- every stage says the same again ----

# says COUNT ARGUMENT...: so many groups are equal and no other is compared; the last line says so.
says() {
    count=$1
    shift
    replay "$@" >"$work/out" || fail "replay $*: exit $?: $(tail -3 "$work/out") $(cat "$work/err")"
    [ "$(tail -n 1 "$work/out")" = "$count groups: $count equal to the bit, 0 differ" ] || fail "replay $*: $(cat "$work/out")"
    [ "$(grep -c '^e0-0000[0-9]* *equal$' "$work/out")" = "$count" ] || fail "replay $*: $(cat "$work/out")"
}

for stage in frames refscore consistency note reward score judge; do
    says 20 "$run" --stage $stage
    [ ! -s "$work/err" ] || fail "$stage: $(cat "$work/err")"
done
# The policy of the groups 0 to 3 is the model directory's, that of 4 to 11 is gone, that of 12 to 19 has a file.
says 12 "$run" --stage rollout
grep -q "left out: 8 groups sampled with versions of the policy that no longer exist: there are 0, 3 to 5$" "$work/err" ||
    fail "rollout: $(cat "$work/err")"
expect 65 "group e0-000007 was sampled with version 1 of the policy, which no longer exists: there are 0, 3 to 5" \
    "$bin/caravan" replay "$run" e0-000012 e0-000007 --stage rollout
[ ! -s "$work/out" ] || fail "groups before it were replayed: $(cat "$work/out")"
files | diff "$work/before" - || fail "replay has written into the run"
frames | diff "$work/frames" - || fail "replay has changed the frames"

# Checkpoints are enough. The run may have been moved, and be named by its file.
mv "$run/weights" "$work/weights"
[ "$(cd "$run/checkpoints" && echo step-*)" = "step-000004 step-000005" ] || fail "checkpoints: $(ls "$run/checkpoints")"
says 2 "$run" e0-000016 e0-000003 --stage rollout
says 2 "$work/files/run.yaml" e0-000016 e0-000019 --stage refscore
says 2 "$work/files/run.yaml" e0-000016 e0-000019 --stage note
expect 65 "group e0-000009 was scored with version 2 of the reference, which no longer exists: there are 0, 4$" \
    "$bin/caravan" replay "$run" e0-000009 --stage refscore
mv "$work/weights" "$run/weights"
mv "$run" "$work/moved"
for stage in frames rollout refscore note reward; do says 2 "$work/moved" e0-000012 e0-000017 --stage $stage; done
mv "$work/moved" "$run"

# ---- what is changed is seen ----

# differs WHAT ARGUMENT...: the replay ends with code 1, and a line of its output matches.
differs() {
    what=$1 got=0
    shift
    replay "$@" >"$work/out" || got=$?
    [ $got = 1 ] || fail "replay $*: exit $got: $(cat "$work/out" "$work/err")"
    grep -qe "$what" "$work/out" || fail "replay $*: no line like '$what': $(cat "$work/out")"
    awk 'length > 80 { exit 1 }' "$work/out" || fail "replay $*: a line is too long: $(cat "$work/out")"
    tail -n 1 "$work/out" | grep -q "^1 group: 0 equal to the bit, 1 differ$" || fail "replay $*: $(tail -n 1 "$work/out")"
}

differs '^  completions\[7\].logprobs .* differ by up to ' "$run" e0-000012 --stage rollout --set model="$work/model"
differs '^  reference.version  4 -> 0$' "$run" e0-000018 --stage refscore --set model="$work/model"
differs '^  completions  8 -> 4 elements$' "$run" e0-000012 --stage rollout --set rollout.group_size=4
differs '^  quarantine.reason  - -> "prompt too long' "$run" e0-000012 --stage rollout --set max_prompt_tokens=9
differs '^  media\[0\].frames  4 -> 2$' "$run" e0-000012 --stage frames --set min_frames=2 --set max_frames=2
differs '^  note.length  4 -> 5$' "$run" e0-000012 --stage note --set length=5

# Only what a caller asks for: nothing but JSON, with the values as they are stored.
"$bin/caravan" replay "$run" e0-000012 e0-000001 --stage judge --json >"$work/out" 2>"$work/err" || fail "--json: $(cat "$work/err")"
printf '{"id":"e0-00000%s","equal":true,"differences":[]}\n' 1 >"$work/wanted"
grep -qxFf "$work/wanted" "$work/out" && [ "$(wc -l <"$work/out")" = 2 ] || fail "--json: $(cat "$work/out")"

# With another margin: the groups of which a program of ten lines finds other rewards, and of these the advantages that it
# finds to change. And of the frames one pixel that is not as it was is found.
if command -v python3 >/dev/null; then
    cat >"$work/wanted.py" <<'END'
import json, math, sys
def rewards(group, margin):
    accuracy = group["rewards"]["accuracy"]
    p = [None if x is None else min(math.exp(x), 0.95) for x in group["reference"]["answer_logprob"]]
    right = [a > 0.1 and a >= sum(accuracy) / len(accuracy) - 1e-6 for a in accuracy]
    known = [q for q, r in zip(p, right) if r and q is not None]
    bonus = [0.5 * a if r and q is not None and q >= sum(known) / len(known) - margin - 1e-6 else 0 for a, q, r in zip(accuracy, p, right)]
    total = [a + f + b for a, f, b in zip(accuracy, group["rewards"]["format"], bonus)]
    mean = sum(total) / len(total)
    deviation = math.sqrt(sum((t - mean) ** 2 for t in total) / (len(total) - 1))
    return bonus, [(t - mean) / (deviation + 1e-4) for t in total]
def differ(a, b): return any(abs(x - y) > 1e-9 for x, y in zip(a, b))
for line in open(sys.argv[1]):
    group = json.loads(line)
    then, now = rewards(group, 0), rewards(group, float(sys.argv[3]))
    assert not differ(then[0], group["rewards"]["bonus"]) and not differ(then[1], group["advantages"]), group["id"]
    if sys.argv[2] == "wanted": print(group["id"], differ(then[0], now[0]), differ(then[1], now[1]))
END
    cat >"$work/found.py" <<'END'
import json, sys
for line in open(sys.argv[1]):
    said = json.loads(line)
    paths = [d["path"].split("[")[0] for d in said["differences"]]
    assert set(paths) <= {"rewards.bonus", "rewards.total", "advantages"} and said["equal"] == (not paths), line
    print(said["id"], "rewards.bonus" in paths, "advantages" in paths)
END
    "$bin/caravan" groups export "$run" >"$work/groups"
    for margin in 0.02 0.3; do
        got=0
        replay "$run" --stage reward --set margin=$margin --json >"$work/out" || got=$?
        [ $got = 1 ] || fail "margin $margin: exit $got: $(cat "$work/err")"
        python3 "$work/wanted.py" "$work/groups" wanted $margin | sort >"$work/wanted" || fail "the wanted groups"
        python3 "$work/found.py" "$work/out" | sort | diff "$work/wanted" - || fail "margin $margin"
    done
    grep -q "True True" "$work/wanted" && grep -q "False False" "$work/wanted" || fail "the run is too small: $(cat "$work/wanted")"
    cp -r "$run" "$work/pixel"
    key=$("$bin/caravan" groups export "$run" e0-000012 | grep -o '"key":"[0-9a-f]*"' | head -1 | cut -d'"' -f4)
    "$bin/caravan" frames export "$run" "$key" --raw >"$work/raw"
    python3 - "$work/pixel/store/frames.lmdb" "$work/raw" <<'END'
import sys
store, raw = (open(path, "rb").read() for path in sys.argv[1:])
assert store.count(raw) == 1
with open(sys.argv[1], "r+b") as file:
    file.seek(store.find(raw) + 1000)
    file.write(bytes([raw[1000] ^ 4]))
END
    differs "^  media\[0\].pixels  1 of $(wc -c <"$work/raw") differ by up to 4$" "$work/pixel" e0-000012 --stage frames
    cp -r "$run" "$work/damaged"
    sed -i 's/sample_id/simple_id/g' "$work/damaged/store/groups.lmdb"
    expect 65 "damaged/store: .*group" "$bin/caravan" replay "$work/damaged" e0-000012 --stage reward
    expect 65 "damaged/store: .*group" "$bin/caravan" replay "$work/damaged" --stage reward
    rm -r "$work/pixel" "$work/damaged"
fi

# ---- what cannot be replayed ----

refused() { # refused CODE PATTERN ARGUMENT...
    expect "$1" "^caravan: replay: $2" "$bin/caravan" replay "${@:3}"
    [ "$(wc -l <"$work/err")" = 1 ] && [ ! -s "$work/out" ] || fail "replay ${*:3}: $(cat "$work/out" "$work/err")"
}
expect 64 "missing: stage" "$bin/caravan" replay "$run"
refused 64 "--stage source: it makes the groups" "$run" --stage source
refused 64 "--stage optim: a step trains all its groups" "$run" --stage optim
refused 64 "--stage nothing: the run has no such stage; it has source, frames, rollout" "$run" --stage nothing
refused 65 "the run has no group e0-000099" "$run" e0-000001 e0-000099 --stage reward
refused 65 ".*/data/pipeline.yaml: there is none" "$work/data" --stage reward
refused 65 "/nowhere: No such file" /nowhere --stage reward
touch "$work/wrong"
refused 65 "$work/wrong: neither the directory of a run" "$work/wrong" --stage reward
refused 64 "--set: margn: no such key; did you mean margin?" "$run" --stage reward --set margn=1
refused 64 "--set: coefficient: 'half' is not a number" "$run" --stage reward --set coefficient=half
refused 64 "--set coefficient: this is not KEY=VALUE" "$run" --stage reward --set coefficient
refused 64 "--set: min_frames: 20 is above max_frames" "$run" --stage frames --set min_frames=20
refused 64 "--set store: it does not change what the stage says" "$run" --stage rollout --set store="$work"
for key in program timeout from on replicas; do
    refused 64 "--set $key: it is no argument of the program" "$run" --stage note --set $key=5
done
refused 64 "--set: weights: no such key" "$run" --stage rollout --set weights="$work/wrong"
refused 65 "--set: model: /nowhere: No such file" "$run" --stage rollout --set model=/nowhere
touch "$work/broken"
refused 69 "note: group e0-000012: it ended with exit code 4$" "$run" e0-000012 --stage note
rm "$work/broken"
printf x | dd of="$work/model/model.safetensors" bs=1 seek=$(($(stat -c %s "$work/model/model.safetensors") - 3)) conv=notrunc status=none
refused 65 "refscore: $work/model has other weights (hash [0-9a-f]*) than those with which the run began" "$run" e0-000001 --stage refscore

# Groups that a stage has set aside: it says so again; the stages behind it have nothing to do with them.
make_questions 3
make_program sampler "exec sed -u -e '/\"id\":\"e0-000001\"/s/}\$/,\"quarantine\":{\"stage\":\"sampler\",\"reason\":\"too dark\"}}/' -e t -e 's/}\$/,\"completions\":[{\"text\":\"a\"}]}/'"
cat >"$work/dark.yaml" <<END
name: dark
run: $work/dark
stages: [{source: {data: $work/data.jsonl, shuffle: false}}, {sampler: {program: $work/sampler.sh}}, {score: {}}]
END
"$bin/caravan" run "$work/dark.yaml" 2>"$work/err" || fail "the run: $(cat "$work/err")"
replay "$work/dark" --stage sampler >"$work/out" || fail "sampler: $(cat "$work/out" "$work/err")"
grep -q "^3 groups: 3 equal" "$work/out" || fail "sampler: $(cat "$work/out")"
replay "$work/dark" --stage score >"$work/out" || fail "score: $(cat "$work/out" "$work/err")"
grep -q "^2 groups: 2 equal" "$work/out" && grep -q "left out: 1 group quarantined before score$" "$work/err" ||
    fail "score: $(cat "$work/out" "$work/err")"
refused 65 "group e0-000001 was quarantined by sampler before it came to score: too dark" "$work/dark" e0-000001 --stage score
refused 64 "--stage reward: the run has no such stage; it has source, sampler, score" "$work/dark" --stage reward
