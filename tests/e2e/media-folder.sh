# Media that are missing: a folder that is away for some seconds costs a run nothing but time, a clip that is missing costs
# its samples, and when many samples in a row fail the training ends.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
make_data 2
make_model
make_pipeline ""

# away NAME OPTION...: a run in $work/NAME whose media folder is moved away after the second step, in the background. Its
# last two steps are issued after that.
away() {
    hold 2
    begin "$@" --set force.program="$work/gated.sh"
    wait_for_step "$name" 2
    mv "$work/data/clips" "$work/data/gone"
    hold 4
    wait_for_line "$work/$name.err" "^caravan: frames: .*: No such file or directory; waiting for it"
}

run plain || fail "plain: $(cat "$work/plain.err")"
want=$(weights_of plain)

# The clips are away for a moment: nothing is quarantined.
away moment
sleep 2
mv "$work/data/gone" "$work/data/clips"
wait $pid || fail "moment: exit $?: $(cat "$work/moment.err")"
grep -q "frames: the folder of the media is there again" "$work/moment.err" || fail "moment: $(cat "$work/moment.err")"
grep -q "done: 8 steps, 16 groups trained, 0 quarantined" "$work/moment.err" || fail "moment: $(cat "$work/moment.err")"
[ "$(weights_of moment)" = "$want" ] || fail "moment: other weights"

# Without media_root, with the whole folder, which a frames stage that is started again cannot have either: the run ends as
# it does when a service is missing, and the same command goes on.
sed "s|\"path\": *\"\./|\"path\": \"$work/data/|" "$work/data/train.jsonl" >"$work/absolute.jsonl"
grep -q "$work/data/clips" "$work/absolute.jsonl" || fail "no absolute path: $(head -1 "$work/absolute.jsonl")"
sed "s|data/train.jsonl|absolute.jsonl|; s| media_root: data,||" "$work/p.yaml" >"$work/absolute.yaml"
mv "$work/p.yaml" "$work/relative.yaml"
cp "$work/absolute.yaml" "$work/p.yaml"
away absolute
sleep 1
mv "$work/data/gone" "$work/data/clips"
wait $pid || fail "absolute: exit $?: $(cat "$work/absolute.err")"
grep -q "done: 8 steps, 16 groups trained, 0 quarantined" "$work/absolute.err" || fail "absolute: $(cat "$work/absolute.err")"
mv "$work/relative.yaml" "$work/p.yaml"

hold 2
begin long --set force.program="$work/gated.sh"
wait_for_step long 2
mv "$work/data" "$work/gone"
hold 4
wait_for_line "$work/long.err" "^caravan: frames: media_root $work/data: No such file or directory; waiting for it"
kill -9 "$(pgrep -P $pid -f caravan-frames)"
ends_with 69 $pid "$work/long.err"
grep -q "^caravan: frames failed 5 times without a group done; it ended with exit code 69: .*media_root: $work/data: No such file" "$work/long.err" ||
    fail "long: $(cat "$work/long.err")"
mv "$work/gone" "$work/data"
run long || fail "long again: $(cat "$work/long.err")"
grep -q "done: 8 steps, 16 groups trained, 0 quarantined" "$work/long.err" || fail "long again: $(cat "$work/long.err")"
[ "$(weights_of long)" = "$want" ] || fail "long: other weights"

# A filter does not wait, and gives up.
group='{"v":1,"id":"a","prompt":{"messages":[{"role":"user","content":[{"type":"video","video":"clips/NAME"}]}],"solution":"<answer>x</answer>"}}'
clip=$(ls "$work/data/clips" | head -1)
mkfifo "$work/in"
"$bin/caravan-frames" --stdio --media-root "$work/data" --min-pixels 3136 --max-pixels 3136 <"$work/in" >"$work/out" 2>"$work/err" &
pid=$!
exec 3>"$work/in"
echo "${group/NAME/$clip}" >&3
wait_until 60 has_lines "$work/out" 1 || true
echo "${group/NAME/none.mp4}" >&3
wait_until 60 has_lines "$work/out" 2 || true
grep -q '"quarantine":{"stage":"frames"' "$work/out" || fail "a missing clip is not quarantined: $(cat "$work/out" "$work/err")"
mv "$work/data/clips" "$work/data/gone"
echo "${group/clips\/NAME/train.jsonl}" >&3 # its own folder is there
wait_until 60 has_lines "$work/out" 3 || true
tail -n 1 "$work/out" | grep -q '"quarantine":{"stage":"frames","reason":"[^"]*train.jsonl: ' ||
    fail "a bad file in another folder is not quarantined: $(cat "$work/out" "$work/err")"
mkdir "$work/data/clips" # what is left of a folder that was mounted there
echo "${group/NAME/$clip}" >&3
exec 3>&-
ends_with 69 $pid "$work/err"
grep -q "^caravan-frames: the media's directory $work/data/clips/: it is empty now" "$work/err" || fail "filter: $(cat "$work/err")"
rmdir "$work/data/clips"
mv "$work/data/gone" "$work/data/clips"

# The folder is gone when a clip is opened, and there again when it is looked for: the clip is opened once more.
if ! grep -q '__[at]san_init' "$bin/caravan-frames"; then # a sanitizer must be loaded first
    cat >"$work/away.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
int open(const char *path, int flags, ...) {
    static int opened;
    va_list arguments;
    va_start(arguments, flags);
    const int mode = va_arg(arguments, int);
    va_end(arguments);
    if (strstr(path, getenv("AWAY")) && !opened++) return errno = ENOENT, -1;
    return ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}
END
    "${CC:-cc}" -shared -fPIC -o "$work/away.so" "$work/away.c"
    echo "${group/NAME/$clip}" | AWAY=/clips/$clip LD_PRELOAD=$work/away.so "$bin/caravan-frames" --stdio \
        --media-root "$work/data" --min-pixels 3136 --max-pixels 3136 >"$work/out" 2>"$work/err"
    grep -q '"media":\[{' "$work/out" && ! grep -q quarantine "$work/out" ||
        fail "a clip whose folder was away for a moment: $(cat "$work/out" "$work/err")"
fi

# Samples without a medium, of which COUNT in a row have a missing clip, behind the first two.
questions() { # COUNT REST
    text='{"id":"%s","prompt":{"messages":[%s],"problem_type":"OCR","solution":"<answer>x</answer>"}}\n'
    none='{"role":"user","content":[{"type":"video","video":"none.mp4"}]}'
    for number in $(seq $((2 + $1 + $2))); do
        if [ $number -gt 2 ] && [ $number -le $((2 + $1)) ]; then medium=$none; else medium=; fi
        printf "$text" $number "$medium"
    done
}
cat >"$work/complete.sh" <<'END'
#!/bin/sh
exec sed -u '/"quarantine":{/!s/}$/,"completions":[{"text":"a","finish":"eos"}],"rewards":{"accuracy":[0],"format":[0],"total":[0]},"advantages":[1]}/'
END
chmod +x "$work/complete.sh"
cat >"$work/p.yaml" <<'END'
run: run
model: model
threads: 1
precision: float32
stages:
  - source: {data: data.jsonl, template: none, shuffle: false, group_size: 1, groups_per_step: 1}
  - frames: {}
  - complete: {program: ./complete.sh}
  - optim: {lr: 1.0e-3, ema_every: 0}
END
questions 5 6 >"$work/data.jsonl"
run handful || fail "handful: $(cat "$work/handful.err")"
grep -q "done: 8 steps, 8 groups trained, 5 quarantined" "$work/handful.err" || fail "handful: $(cat "$work/handful.err")"
questions 40 60 >"$work/data.jsonl"
got=0
run row || got=$?
[ $got = 65 ] || fail "row: exit $got: $(cat "$work/row.err")"
grep -q "^caravan: 3[2-9] samples in a row failed, the last one: sample 3[4-9], line 3[4-9] of data.jsonl: .*none.mp4: No such file or directory (see $work/row/logs/source.log)" "$work/row.err" ||
    fail "row: $(cat "$work/row.err")"

# Three hundred lines about the same are summed up; the log has them all.
for turn in $(seq 300); do questions 1 0 | sed -n "2,3s/\"id\":\"/&$turn-/p"; done >"$work/data.jsonl"
sed '/complete:/d; s/optim: .*/last: {program: cat}/' "$work/p.yaml" >"$work/flood.yaml"
cp "$work/flood.yaml" "$work/p.yaml"
run flood || fail "flood: $(cat "$work/flood.err")"
grep -q "done: 300 groups done, 300 quarantined" "$work/flood.err" || fail "flood: $(cat "$work/flood.err")"
lines=$(grep -c "^caravan: frames: sample " "$work/flood.err")
[ $lines -ge 1 ] && [ $lines -le 40 ] || fail "flood: $lines lines: $(cat "$work/flood.err")"
left=$(sed -n "s|^caravan: frames: and \([0-9]*\) more: see $work/flood/logs/source.log$|\1|p" "$work/flood.err" | awk '{sum += $1} END {print sum + 0}')
[ $((lines + left)) = 300 ] || fail "flood: $lines lines and $left more: $(cat "$work/flood.err")"
[ "$(grep -c ": quarantined .*: frames: sample " "$work/flood/logs/source.log")" = 300 ] || fail "flood: $(tail -3 "$work/flood/logs/source.log")"
