# Invalid input and full disks: lines that are not groups, media, model directories, stores, streams. A program that fails
# prints one line that names the cause and exits with the documented code. Nothing that was done before is lost.
. tests/e2e/common.sh
make_data 2 >/dev/null 2>&1
make_model >/dev/null 2>&1
bin=$(realpath "$bin")
media=$PWD/tests/data/media bert=$PWD/tests/data/tokenizer/modernbert
cd "$work"

# stage NAME [OPTION...]: runs the stage on standard input with the options that it requires.
stage() {
    name=$1
    shift
    case $name in
    source) set -- --data data/train.jsonl --format video-r1 --template none --limit 4 "$@" ;;
    frames) set -- --store store --media-root data $small "$@" ;;
    rollout) set -- --store store --model model --group-size 2 --max-new-tokens 6 --threads 1 "$@" ;;
    refscore) set -- --store store --model model --logprobs all --threads 1 "$@" ;;
    optim) set -- --store store --model model --out trained --groups-per-step 2 --steps 2 --threads 1 "$@" ;;
    esac
    "$bin/caravan-$name" --stdio "$@"
}
# refused CODE PATTERN FILE COMMAND...: with FILE as its standard input, the command must exit with CODE. Its standard error
# must have one line apart from progress, and that line must match PATTERN.
refused() {
    code=$1 pattern=$2 file=$3
    shift 3
    got=0
    "$@" <"$file" >out.jsonl 2>err || got=$?
    [ "$got" = "$code" ] || fail "$*: exit $got instead of $code: $(cat err)"
    grep -v ': [0-9]* groups, \|: step [0-9]*: \|did not fill a step' err >lines || fail "$*: no message"
    [ "$(wc -l <lines)" = 1 ] || fail "$*: expected one line: $(cat err)"
    grep -q -e "$pattern" lines || fail "$*: no '$pattern' in: $(cat lines)"
}

before=(frames rollout refscore reward optim)
stage source >frames.jsonl 2>/dev/null
for i in 0 1 2 3; do stage ${before[i]} <${before[i]}.jsonl >${before[i + 1]}.jsonl 2>/dev/null; done

# Options: unknown keys, values out of range, both spellings, missing options.
for name in source "${before[@]}"; do
    expect 64 "--bogus: no such option" "$bin/caravan-$name" --stdio --bogus 1
    expect 64 "threads: 0 is out of range" "$bin/caravan-$name" --stdio --threads=0
    expect 65 "none.yaml: No such file" "$bin/caravan-$name" --stdio --config none.yaml
done
expect 64 "max_new_tokens: 0 is out of range" stage rollout --max-new_tokens=0
expect 64 "missing: model, out" "$bin/caravan-optim" --stdio
expect 65 "nowhere: No such file" "$bin/caravan-refscore" --stdio --model nowhere
expect 64 "device: 'tpu'" stage rollout --device tpu

# Lines: the lines before a bad one are written, its number is in the message, and the lines after it are not read.
for name in "${before[@]}"; do
    good=$(sed -n 2p $name.jsonl)
    all=('no json' "${good/\"messages\":/\"mess\":}" "${good/What/$'W\xff'}")
    [ $name != frames ] || all+=('[1]' '{}' '{"id":5}' "${good:0:200}" "$good x" "${good/\"solution\":\"/\"solution\":7,\"x\":\"}" "${good/\"role\":/\"role\":[],\"x\":}")
    for bad in "${all[@]}"; do
        { sed -n 1p $name.jsonl; echo; printf '%s\n' "$bad"; sed -n 3p $name.jsonl; } >lines.in
        rm -rf trained
        refused 65 "^caravan-$name: line 3: " lines.in stage $name
        [ "$(wc -l <out.jsonl)" = 1 ] || fail "$name: expected the line before '$bad'"
    done
    set_aside='{"id":"q","prompt":{"messages":[],"solution":""},"quarantine":{"stage":"frames","reason":"no clip","x":1.0},  "x":0.10}'
    echo "$set_aside" | stage $name 2>/dev/null | cmp - <(echo "$set_aside") || fail "$name changed a quarantined group"
    # Unknown keys on every level stay unchanged.
    sed -n 1p $name.jsonl | sed 's/{/{"zz":{"big":12345678901234567890123,"one":1.0,"e":[1e400,null]},/g; s/"times":{"zz":{[^}]*},/"times":{/' >keys.in
    rm -rf trained
    stage $name <keys.in >keys.out 2>/dev/null || fail "$name fails on unknown keys"
    wanted=$(grep -o '"zz":{"big":12345678901234567890123,"one":1.0,"e":\[1e400,null\]}' keys.in | wc -l)
    [ "$(grep -o '"zz":{"big":12345678901234567890123,"one":1.0,"e":\[1e400,null\]}' keys.out | wc -l)" = "$wanted" ] || fail "$name lost unknown keys"
done
# change STAGE SED-EXPRESSION: writes STAGE's input to changed.in, with its second group changed.
change() {
    sed "2$2" "$1.jsonl" >changed.in
    cmp -s changed.in "$1.jsonl" && fail "$2 changes nothing"
    rm -rf trained
}
change refscore 's/"completions":.*/"completions":[]}/'
refused 65 'line 2: not a group: completions: empty' changed.in stage refscore
change refscore 's/"prompt_tokens":\[[^]]*\]/"prompt_tokens":[1,2,3]/'
sed -i 's/"completions":/"reference":{"zz":1.0},&/' changed.in
stage refscore --logprobs answer <changed.in >out.jsonl 2>err || fail "refscore: a prompt that does not fit its media: $(cat err)"
grep '"quarantine":{"stage":"refscore"' out.jsonl | grep -q '"reference":{"zz":1.0}' || fail "a group that refscore failed at has other numbers: $(cat out.jsonl)"
[ "$(grep -c '"reference":{"version":0,.*,"zz":1.0}' out.jsonl)" = 3 ] || fail "refscore lost an unknown key of reference: $(cat out.jsonl)"
change refscore 's/"text":"/"txet":"/2'
refused 65 'line 2: not a group: completions\[0\].text: missing' changed.in stage refscore
change reward 's/"reference":/"other":/'
refused 65 'line 2: not a group: reference: missing' changed.in stage reward
change reward 's/"problem_type":"[^"]*"/"problem_type":"puzzle"/'
refused 65 'puzzle' changed.in stage reward
grep -q "$(sed -n 2p reward.jsonl | grep -o '"sample_id":"[^"]*"' | cut -d'"' -f4)" lines || fail "the message does not name the sample"
change reward 's/"problem_type":"[^"]*"/"problem_type":"puz\\nzle\\u001b[31m"/'
refused 65 "'puz?zle?.31m'" changed.in stage reward
change optim 's/"advantages":/"others":/'
refused 65 'line 2: not a group: advantages: missing' changed.in stage optim
[ "$(wc -l <out.jsonl)" = 1 ] || fail "optim lost the group before the bad line"
change optim 's/"logprobs":\[[^,]*,/"logprobs":[/'
refused 65 'line 2: not a group: completions\[0\].logprobs: [0-9]* for [0-9]* tokens' changed.in stage optim
change optim 's/"prompt_tokens":\[/"prompt_tokens":[99999999,/'
refused 65 'token 99999999 is outside' changed.in stage optim
change optim 's/"prompt_tokens":\[[^]]*\]/"prompt_tokens":[1,2,3]/'
stage optim <changed.in >out.jsonl 2>err || fail "a prompt that does not fit its media: $(cat err)"
[ "$(grep -c '"quarantine":{"stage":"optim"' out.jsonl)" = 1 ] && [ "$(wc -l <out.jsonl)" = 4 ] || fail "optim does not quarantine that group: $(cat err)"
printf '{"text":"a"}\n\n{"txet":1}\n{"text":"b"}\n' >texts
refused 65 'line 3: ' texts "$bin/caravan" tokenize --model model
[ "$(wc -l <out.jsonl)" = 1 ] || fail "tokenize lost the line before the bad one"
for line in '{"pair":"a"}@has a pair but no text' '{"text":"a","pair":3}@pair: expected string' '{"text":"a","messages":[]}@both text and messages' '{"messages":[{"role":"user","content":"a"}]}@modernbert: .* no token <|im_start|>'; do
    { echo '{"text":"a","pair":"b"}' && echo "${line%@*}"; } >texts
    refused 65 "line 2: .*${line##*@}" texts "$bin/caravan" tokenize --model "$bert"
    [ "$(cat out.jsonl)" = '{"tokens": [429, 64, 430, 65, 430]}' ] || fail "tokenize of a pair: $(cat out.jsonl)"
done

# Media: a bad file quarantines its group alone; an unusual file name is accepted.
mkdir media dir.mp4
head -c 3000 data/clips/0000.mp4 >media/cut.mp4
echo text >media/text.mp4
: >media/zero.mp4
cp "$media/plain-%03d.png" media/short.mp4 # one frame
mkdir media/dir.mp4
for strange in 'a b%d.mp4' 'é%s.mp4' 'pipe:0'; do cp data/clips/0000.mp4 "media/$strange"; done
cp "$media/wide.png" "$media/thin.png" media # 10,000 pixels wide; 201 times as wide as high
for name in cut.mp4 text.mp4 zero.mp4 short.mp4 dir.mp4 missing.mp4 'a b%d.mp4' 'é%s.mp4' pipe:0 wide.png thin.png; do
    kind=video
    case $name in *.png) kind=image ;; esac
    echo "{\"id\":\"$name\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"$kind\",\"$kind\":\"$name\"}]}],\"solution\":\"\"}}"
done >media.in
"$bin/caravan-frames" --stdio --store mstore --media-root media <media.in >media.out 2>err || fail "bad media: $(cat err)"
[ "$(wc -l <media.out)" = 11 ] || fail "a group with bad media is lost"
for name in cut.mp4 text.mp4 zero.mp4 short.mp4 dir.mp4 missing.mp4; do
    grep "\"id\":\"$name\"" media.out | grep -q "\"quarantine\":{\"stage\":\"frames\",\"reason\":\"[^\"]*$name: " || fail "$name is not quarantined"
done
for name in 'a b%d.mp4' 'é%s.mp4' pipe:0 wide.png; do
    grep "\"id\":\"$name\"" media.out | grep -q '"quarantine":{' && fail "$name is quarantined: $(grep "\"id\":\"$name\"" media.out)"
done

# Model directories.
broken() {
    rm -rf broken
    cp -r model broken
}
broken && rm broken/config.json && expect 65 "broken/config.json: No such file" stage rollout --model broken
broken && rm broken/model.safetensors && expect 65 "broken/model.safetensors: No such file" stage rollout --model broken
broken && rm broken/tokenizer.json && expect 65 "broken: no tokenizer.json" stage rollout --model broken
for bytes in 0 5 100 1000000; do
    broken && head -c $bytes model/model.safetensors >broken/model.safetensors
    expect 65 "broken/model.safetensors: " stage rollout --model broken
done
# edit_header FROM TO PATTERN: replaces FROM in the header by TO, which must be as long; the message must match PATTERN.
edit_header() {
    broken
    LC_ALL=C sed -i "s/$1/$2/" broken/model.safetensors
    cmp -s model/model.safetensors broken/model.safetensors && fail "the header has no $1"
    expect 65 "broken/model.safetensors: $3" stage rollout --model broken
}
edit_header '"data_offsets":\[0,' '"data_offsets":[9,' 'tensor '
edit_header '"F32"' '"I99"' 'tensor .*dtype I99'
edit_header 'model.norm.weight' 'model.morn.weight' 'tensor model.norm.weight is missing'
edit_header '\[512,128\]' '[128,512]' 'tensor .* has shape \[128, 512\]'
broken && mv broken/model.safetensors broken/model-00001-of-00002.safetensors
echo '{"weight_map":{"model.norm.weight":"model-00002-of-00002.safetensors"}}' >broken/model.safetensors.index.json
expect 65 "broken/model-00002-of-00002.safetensors: No such file" stage rollout --model broken
config() {
    broken
    sed -i "s/\"$1\": *[^,]*/\"$1\": $2/" broken/config.json
    expect 65 "broken/config.json: $1" stage rollout --model broken
}
config num_attention_heads 0
config num_hidden_layers 1000000000
config num_hidden_layers 1000000000000000000000000
config hidden_size -4
config vocab_size '"x"'
broken && sed -i 's/<|im_start|>/<|mi_start|>/' broken/tokenizer.json broken/tokenizer_config.json && expect 65 "broken: .*<|im_start|>" stage rollout --model broken
broken && head -c 3000 model/tokenizer.json >broken/tokenizer.json && expect 65 "broken/tokenizer.json: not JSON" stage rollout --model broken

# Stores and disks.
mkdir garbage
head -c 50000 /dev/urandom >garbage/groups.lmdb
refused 65 "garbage/groups.lmdb: the file is damaged (page 0): remove it" reward.jsonl stage reward --store garbage
stage reward --store replaced <reward.jsonl >/dev/null 2>&1
sed 's/"sample_id":"[^"]*"/"sample_id":"another"/' reward.jsonl >other.jsonl
stage reward --store replaced <other.jsonl >/dev/null 2>err || fail "a store with groups of other samples: $(cat err)"
[ "$(grep -c '^caravan-reward: group .* of sample another replaces that of another sample in the store: ' err)" = 1 ] || fail "not one line about replaced groups: $(cat err)"
sed 's/"sample_id":"[^"]*"/"sample_id":"a\\nb\\u001b[31m"/' reward.jsonl | stage reward --store breaks >/dev/null 2>&1
for action in ls show; do
    "$bin/caravan" groups $action breaks >out
    [ "$(grep -c 'a?b?.31m' out)" = 4 ] && ! grep -q $'\033' out || fail "groups $action of names with line breaks: $(cat -v out)"
done
[ "$("$bin/caravan" groups ls breaks | wc -l)" = 4 ] || fail "groups ls: not a line for each group"
cp -r store cut
truncate -s 8192 cut/frames.lmdb
refused 65 "cut/frames.lmdb: .*damaged" frames.jsonl stage frames --store cut
expect 65 "nowhere" "$bin/caravan" groups ls --store nowhere
expect 65 "no frames under key" "$bin/caravan" frames show --store store 00000000000000000000000000000000
expect 69 "/proc/nowhere" stage reward --store /proc/nowhere
expect 65 "data/clips/0000.mp4" "$bin/caravan" report data/clips/0000.mp4
expect 64 "there is no subcommand 'rnu'; did you mean run?; see" "$bin/caravan" rnu
"$bin/caravan" -h | cmp - <("$bin/caravan" --help) || fail "caravan -h"
mkdir disk
if mount -t tmpfs -o size=1m caravan-test disk 2>/dev/null; then
    trap 'umount "$work/disk" 2>/dev/null || true; rm -rf "$work"' EXIT
    for i in 1 2 3; do refused 69 "disk/store/.*lmdb: .*no space left" frames.jsonl stage frames --store disk/store --min-pixels 100352 --max-pixels $((105369 * i)); done
    umount disk
    mount -t tmpfs -o size=48m caravan-test disk
    rm -f many.in
    for i in 1 2 3 4; do cat optim.jsonl; done >many.in
    # The steps whose checkpoint has no room are trained all the same; only the last checkpoint must be written.
    got=0
    stage optim --out disk/out --save-every 1 --steps 9 <many.in >out.jsonl 2>err || got=$?
    [ $got = 69 ] || fail "optim on a full disk: exit $got instead of 69: $(cat err)"
    for i in 3 4 5 6 7 8; do grep -q "checkpoint of step $i: disk/out/.*: No space left.*goes on" err || fail "no line about step $i: $(cat err)"; done
    tail -1 err | grep -q "checkpoint of step 8: disk/out/.*: No space left[^;]*$" || fail "not the last checkpoint: $(cat err)"
    [ "$(grep -vc ': step [0-9]*: \|groups/s$' err)" = 7 ] || fail "other lines: $(cat err)"
    [ "$(grep -c '"trained":' out.jsonl)" = 16 ] || fail "not all groups were trained"
    [ "$(cd disk/out && echo *)" = "events.out.tfevents.0000000001.caravan latest metrics.jsonl step-000001 step-000002" ] || fail "an incomplete checkpoint is left: $(ls disk/out)"
    stage rollout --model disk/out/latest <rollout.jsonl >/dev/null 2>err || fail "the checkpoint from before the disk was full cannot be read: $(cat err)"
    umount disk
else
    echo "bad-input: full disks are not tested, because mounting is not allowed"
fi

# Streams: closed, full and broken ones; SIGTERM while a line is read.
for command in "caravan --help" "caravan --version" "caravan run --help" "caravan-reward --help" "caravan-optim --version"; do
    got=0
    "$bin"/$command 2>err >/dev/full || got=$?
    [ $got = 69 ] && grep -q 'cannot write to standard output' err || fail "$command on a full disk: exit $got: $(cat err)"
done
for name in "${before[@]}"; do
    rm -rf trained
    got=0
    stage $name <$name.jsonl 2>err >/dev/full || got=$?
    [ $got = 69 ] && grep -q 'standard output: No space left' err || fail "$name with a full disk: exit $got: $(cat err)"
    rm -rf trained
    got=0
    stage $name 2>err >/dev/null <&- || got=$?
    [ $got = 65 ] && grep -q 'standard input: Bad file' err || fail "$name without standard input: exit $got: $(cat err)"
    refused 69 'standard output: Bad file' $name.jsonl eval "stage $name >&-"
    rm -rf trained
    { stage $name <$name.jsonl 2>err || echo "exit $?" >>err; } | true
    grep -q 'exit' err && fail "$name with a closed pipe: $(cat err)"
    rm -rf trained
    mkfifo pipe
    stage $name <pipe >out.jsonl 2>err &
    child=$!
    exec 9>pipe
    cat $name.jsonl >&9
    wait_until 120 has_lines out.jsonl 4 || true
    head -c 100 $name.jsonl >&9
    kill -TERM $(pgrep -P $child) 2>/dev/null || kill -TERM $child
    got=0
    wait $child || got=$?
    exec 9>&-
    rm pipe
    [ $got = 0 ] && [ "$(wc -l <out.jsonl)" = 4 ] && [ "$(tail -c 2 out.jsonl)" = '}' ] || fail "$name after SIGTERM: exit $got: $(cat err)"
done

# Pipeline files: every mistake is reported with its line and column, and nothing is started.
cat >ten.yaml <<END
name: ten
nmae: ten
run: ten-run
model: nowhere
stages:
  - source: {data: none.jsonl, format: csv}
  - frames: {fps: abc, replicas: 0}
  - rollot: {temperature: 1}
  - refscore: {span: conten}
  - reward: {method: careful}
  - optim: {lr: -1, bogus: 3}
END
expect 65 "ten.yaml: 9 mistakes" "$bin/caravan" graph ten.yaml # it looks at no file that is named
for subcommand in check run; do
    expect 65 "ten.yaml: 1[0-9] mistakes" "$bin/caravan" $subcommand ten.yaml
    for place in 2:1 4:8 6:20 6:40 7:19 7:34 8:5 9:22 10:22 11:17 11:21; do
        [ "$(grep -c "^ten.yaml:$place: " err)" = 1 ] || fail "$subcommand: not one mistake at $place: $(cat err)"
    done
done
[ ! -e ten-run ] || fail "a run was started from a file with mistakes"
