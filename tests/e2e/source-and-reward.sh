# The source and reward stages and `caravan groups`: what they read, write and refuse.
. tests/e2e/common.sh

line='{"problem_id":7,"problem":"Which?","data_type":"video","problem_type":"multiple choice","options":["A. x","B. y"],"path":"./v/a.mkv","solution":"<answer>B</answer>"}'
printf '%s\n\n%s\n' "$line" "$line" >"$work/good.jsonl"
printf '%s\n%s\n' "$line" "${line/problem_type\":\"multiple choice/problem_type\":\"puzzle}" >"$work/type.jsonl"
printf '%s\n{"problem_id":8}\n{"problem_id":\n' "$line" >"$work/several.jsonl"
printf 'no place for it\n' >"$work/template.txt"
source() { "$bin/caravan-source" --stdio --format video-r1 "$@"; }

source --data "$work/good.jsonl" --epochs 2 >"$work/groups.jsonl"
[ "$(grep -o '"id":"[^"]*"' "$work/groups.jsonl" | tr -d '\n')" = '"id":"e0-000000""id":"e0-000001""id":"e1-000000""id":"e1-000001"' ] ||
    fail "wrong ids: $(cat "$work/groups.jsonl")"
source --data "$work/good.jsonl" --media-root "$work" --limit 1 | grep -q "\"video\":\"$work/v/a.mkv\"" || fail "the path does not begin with media_root"
source --data "$work/good.jsonl" --template none | grep -q '"text":"Which?Options:\\nA. x\\nB. y\\n"' || fail "template none"

# A record of an unknown kind is one quarantined sample; later stages pass it on.
{ echo "$line"; echo "${line/data_type\":\"video/data_type\":\"audio}"; echo "$line"; } >"$work/kinds.jsonl"
[ "$(source --data "$work/kinds.jsonl" 2>"$work/err" | grep -c '"quarantine":{"stage":"source","reason":"data_type: ')" = 1 ] || fail "unknown kind: $(cat "$work/err")"
grep -q '3 groups, 1 quarantined' "$work/err" || fail "not counted: $(cat "$work/err")"
source --data "$work/kinds.jsonl" --shuffle false 2>"$work/err" | sed -n 2p >"$work/kind"
"$bin/caravan-frames" --stdio <"$work/kind" 2>"$work/err" | cmp - "$work/kind" || fail "frames changed a sample of an unknown kind"

expect 65 "type.jsonl:2: problem_type: 'puzzle' of sample 7" source --data "$work/type.jsonl"
[ ! -s "$work/out" ] || fail "groups were written before all records were checked"
expect 65 'several.jsonl:2: problem_type: missing' source --data "$work/several.jsonl"
expect 65 'several.jsonl:3: not JSON' source --data "$work/several.jsonl"
expect 65 'several.jsonl: 2 mistakes in 3 samples' source --data "$work/several.jsonl"
expect 65 'template.txt: no {question}' source --data "$work/good.jsonl" --template "$work/template.txt"
expect 65 'good.jsonl:1: not a group: ' "$bin/caravan-source" --stdio --data "$work/good.jsonl"
expect 65 'missing.jsonl' source --data "$work/missing.jsonl"

# A group with a right and a wrong completion goes through reward into the store.
answer='"completions":[{"tokens":[1,2],"text":"<think>.</think><answer>B</answer>","finish":"eos"},{"tokens":[3],"text":"A","finish":"length"}],"mine":{"b":1.50,"a":[1e400,-0,123456789012345678901]}'
head -n 1 "$work/groups.jsonl" | sed "s|}\$|,$answer}|" >"$work/sampled.jsonl"
reward() { "$bin/caravan-reward" --stdio "$@"; }
reward --method grpo --store "$work/store" <"$work/sampled.jsonl" >"$work/rewarded.jsonl"
grep -q '"rewards":{"accuracy":\[1,0\],"format":\[1,0\],"total":\[2,0\]}' "$work/rewarded.jsonl" || fail "rewards: $(cat "$work/rewarded.jsonl")"
grep -q '"mine":{"b":1.50,"a":\[1e400,-0,123456789012345678901\]}' "$work/rewarded.jsonl" || fail "unknown keys have changed"

# A quarantined group passes unchanged. A line that is not a group ends the stage after the lines before it were written.
set_aside='{"id":"q","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames","reason":"no clip"},  "x":0.10}'
{ echo "$set_aside"; echo; cat "$work/sampled.jsonl"; echo '{"id":"x"}'; cat "$work/sampled.jsonl"; } >"$work/mixed.jsonl"
rewarded() { reward "${@:2}" <"$work/$1.jsonl"; } # FILE OPTION...
expect 65 'caravan-reward: line 4: not a group: prompt: missing' rewarded mixed --method grpo
[ "$(wc -l <"$work/out")" = 2 ] || fail "expected the two lines before the bad one"
[ "$(head -n 1 "$work/out")" = "$set_aside" ] || fail "a quarantined group was changed"

expect 65 'not a group: reference: missing' rewarded sampled
expect 65 'not a group: consistency.probability: missing' rewarded sampled --method cora
expect 64 "method: 'coral' is not one of care|grpo|" reward --method coral

"$bin/caravan" groups ls --store "$work/store" | grep -q '^e0-000000 *rewarded .*accuracy 0.5  reward 1$' || fail "groups ls"
"$bin/caravan" groups show --store "$work/store" e0-000000 | grep -q 'advantage 0.7071' || fail "groups show"
diff <("$bin/caravan" groups export --store "$work/store" | sed 's/"times":{[^}]*},//') <(sed 's/"times":{[^}]*},//' "$work/rewarded.jsonl") ||
    fail "groups export differs from what reward wrote"
expect 65 'no group e9-000000' "$bin/caravan" groups export --store "$work/store" e9-000000
mkdir "$work/empty"
expect 65 'groups.lmdb' "$bin/caravan" groups ls --store "$work/empty"
prune() { "$bin/caravan" groups prune --store "$work/store" "$@"; }
expect 64 'prune needs --keep or --sections' prune
expect 64 "keep: '100' is none of all, a number of steps" prune --keep 100
expect 64 "prune takes no 'e0-000000'" prune --keep 1B e0-000000
expect 64 'keep and --sections belong to prune' "$bin/caravan" groups ls --store "$work/store" --keep 1B
expect 65 'groups.lmdb' "$bin/caravan" groups prune --store "$work/empty" --keep 1B
expect 0 'removed 0 groups' prune --keep '1 step' --sections
before=$("$bin/caravan" groups ls --store "$work/store" | wc -l)
expect 0 "removed $((before - 1)) groups" prune --keep 1B
[ "$("$bin/caravan" groups ls --store "$work/store" | wc -l)" = 1 ] || fail "the newest group does not stay"
