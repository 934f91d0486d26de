# What optim does with the disk: which checkpoints it keeps, where it may be killed while it writes one and removes another,
# and a disk that is full for a while. `prlimit --fsize` stands for the full disk: no file may grow beyond it.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/run-helpers.sh"
runner= pid=
trap 'kill $runner $pid 2>/dev/null || true; rm -rf "$work"' EXIT

make_tiny_model
cd "$work"
for i in $(seq 8); do
    echo "{\"v\":1,\"id\":\"$i\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":\"What is $i?\"}],\"solution\":\"<answer>x</answer>\"},\"completions\":[{\"text\":\"It is $i.\",\"finish\":\"eos\"}],\"advantages\":[1]}"
done >groups
optim() { "$bin/caravan-optim" --stdio --model model --groups-per-step 1 --steps 8 --lr 1e-3 --threads 1 --save-every 1 "$@"; }

# Kept are the two newest, every third, and the one with a link.
mkdir kept
ln -s step-000002 kept/best
head -7 groups | optim --out kept --keep 2 --keep-every 3 >out 2>err || fail "optim: $(cat err)"
[ "$(cd kept && echo step-*)" = "step-000002 step-000003 step-000006 step-000007" ] || fail "kept: $(ls kept)"
optim --out kept --keep 1 </dev/null >out 2>err || fail "optim: $(cat err)"
[ "$(cd kept && echo step-*)" = "step-000002 step-000007" ] || fail "kept by a new process: $(ls kept)"
grep -q "resumes at step 7 from kept/step-000007" err || fail "not the newest one: $(cat err)"
optim --out kept </dev/null >out 2>err
[ "$(cd kept && echo step-*)" = "step-000002 step-000007" ] || fail "all are kept: $(ls kept)"
expect 64 "keep" "$bin/caravan-optim" --stdio --model model --out bad --keep -1
expect 64 "keep.every" "$bin/caravan-optim" --stdio --model model --out bad --keep-every x

# Killed before any of its changes to the directory, it leaves the checkpoint of step 1 or that of step 2, complete.
if ! grep -q '__[at]san_init' "$bin/caravan-optim"; then # a sanitizer must be loaded first
    cat >killer.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static void count(void) {
    static int calls;
    const char *last = getenv("KILL_AT");
    if (last && ++calls == atoi(last)) kill(getpid(), SIGKILL);
}
#define BEFORE(name, parameters, arguments) \
    int name parameters { count(); return ((int (*) parameters)dlsym(RTLD_NEXT, #name)) arguments; }
BEFORE(rename, (const char *from, const char *to), (from, to))
BEFORE(unlink, (const char *path), (path))
BEFORE(remove, (const char *path), (path))
BEFORE(symlink, (const char *to, const char *path), (to, path))
BEFORE(mkdir, (const char *path, mode_t mode), (path, mode))
BEFORE(fsync, (int fd), (fd))
BEFORE(fdatasync, (int fd), (fd))
END
    cc -shared -fPIC -o killer.so killer.c
    head -1 groups | optim --out one --keep 1 >out 2>err
    files() { (cd "$1" && stat -c '%n %s' *); }
    files one/step-000001 >wanted
    ended= removals=0
    for at in $(seq 80); do
        rm -rf two
        cp -r one two
        code=0
        sed -n 2p groups | KILL_AT=$at LD_PRELOAD=$work/killer.so optim --out two --keep 1 >out 2>err || code=$?
        newest=$(cd two && ls -d step-*/progress | sort | tail -1)
        [ -n "$newest" ] && files "two/${newest%/progress}" | cmp - wanted || fail "killed at $at: $(ls two/*)"
        if ls two/*.tmp/model.safetensors >/dev/null 2>&1 && [ "$newest" = step-000002/progress ]; then
            removals=$((removals + 1))
            optim --out two --keep 1 </dev/null >out 2>err || fail "killed at $at and started again: $(cat err)"
            [ "$(cd two && echo step-*)" = step-000002 ] || fail "killed at $at, what is left is not removed: $(ls two)"
        fi
        if [ $code = 0 ]; then
            ended=$at
            break
        fi
        [ $code = 137 ] || fail "killed at $at: exit $code: $(cat err)"
    done
    [ -n "$ended" ] && [ "$ended" -gt 15 ] && [ $removals -gt 0 ] || fail "killed $ended times, $removals while it removed the old one"
fi

# No room for metrics and checkpoints while step 2 is trained: said once, and written when there is room.
mkfifo in
exec 4> >(cat >trained) 5> >(cat >err)
optim --out full <in >&4 2>&5 4>&- 5>&- &
pid=$!
exec 3>in 4>&- 5>&-
sed -n 1p groups >&3
wait_for_line trained '"trained":{"step":1}'
child=$(pgrep -P $pid caravan-optim || echo $pid)
prlimit --pid "$child" --fsize=1:unlimited
sed -n 2,3p groups >&3
wait_for_line trained '"trained":{"step":3}'
prlimit --pid "$child" --fsize=unlimited:unlimited
sed -n 4p groups >&3
exec 3>&-
wait $pid || fail "optim ended with exit $? when the disk was full: $(cat err)"
wait_for_line err "4 groups, "
[ "$(grep -c 'full/metrics.jsonl: cannot write: File too large; training goes on' err)" = 1 ] || fail "metrics: $(cat err)"
[ "$(grep -c 'full/events.*: can be written again' err)" = 1 ] || fail "events: $(cat err)"
[ "$(grep -c 'checkpoint of step [23]: .*File too large; training goes on' err)" = 2 ] || fail "checkpoints: $(cat err)"
[ "$(cd full && echo step-*)" = "step-000001 step-000004" ] || fail "checkpoints on a full disk: $(ls full)"
[ "$(grep -o '"step": [0-9]*' full/metrics.jsonl | tr -dc '1-9')" = 1234 ] || fail "metrics: $(cat full/metrics.jsonl)"
[ "$(grep -ao grad_norm full/events* | wc -l)" = 4 ] || fail "a step is missing in $(ls full/events*)"

# A checkpoint that is damaged is named, with the newest one that is sound.
damage() { # FILE OFFSET
    head -c 64 /dev/zero | tr '\0' '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
head -3 groups | optim --out sound >out 2>err || fail "optim: $(cat err)"
for offset in 0 8 60 300; do
    rm -rf broken
    cp -r sound broken
    damage broken/step-000003/training.safetensors $offset
    expect 65 "training.safetensors: .*: the checkpoint is damaged: remove broken/step-000003, and the training goes on from broken/step-000002$" optim --out broken
done
echo "step 3" >broken/step-000003/progress
truncate -s 1000 broken/step-000002/training.safetensors
expect 65 "progress: .*: the checkpoint is damaged: remove broken/step-000003, and the training goes on from broken/step-000001$" optim --out broken
rm broken/step-000003/progress
expect 65 "progress: No such file.*: the checkpoint is damaged: remove broken/step-000003, and the training goes on from broken/step-000001$" optim --out broken
rm -r broken/step-000001 broken/step-000002
expect 65 "the checkpoint is damaged: remove broken/step-000003, and the training begins anew$" optim --out broken

# Where `latest` is no link, as in a copy that follows links, no checkpoint could be written.
cp -rL sound copied
expect 65 "^caravan-optim: copied/latest: not the link to the newest checkpoint" optim --out copied
rm -r copied/latest
optim --out copied </dev/null >out 2>err || fail "without its link: $(cat err)"

# In a pipeline the run waits for room for weights, and at the end for room for the checkpoint.
cat >p.yaml <<END
run: run
model: model
threads: 1
precision: float32
seed: 7
stages:
  - source: {data: data.jsonl, template: none, group_size: 1, groups_per_step: 1, epochs: 1}
  - complete: {program: ./complete.sh}
  - optim: {lr: 1.0e-3, ema_every: 1}
END
make_numbers 8
# While there is a file hold, the run waits with its third group.
make_program complete "exec sed -u -e '$complete' -e '3,999e while [ -e $work/hold ]; do sleep 0.05; done' -e 'e sleep 0.2'"
run whole || fail "whole: $(cat whole.err)"
touch hold
begin tight
runner=$pid
wait_for_step tight 2
child=$(pgrep -f "caravan-optim.*$work/tight")
size=$(stat -c %s whole/checkpoints/latest/model.safetensors)
prlimit --pid "$child" --fsize=$((size / 2)):unlimited
rm hold
wait_for_line tight.err "^caravan: optim: .*weights/.*cannot write: File too large; the run waits"
step=$(wc -l <tight/metrics.jsonl)
sleep 1
[ "$(wc -l <tight/metrics.jsonl)" -le $((step + 1)) ] || fail "steps are trained whose weights nobody can get"
prlimit --pid "$child" --fsize=$((size * 2)):unlimited
wait_for_line tight.err "^caravan: optim: checkpoint of step 8: .*File too large; it is tried again for [0-9]* s: make room in "
kill -0 $runner || fail "the run ended without its checkpoint: $(cat tight.err)"
prlimit --pid "$child" --fsize=unlimited:unlimited
wait $runner || fail "tight: exit $?: $(cat tight.err)"
[ "$(weights_of tight)" = "$(weights_of whole)" ] || fail "a disk that was full for a while changes the weights"
check_steps tight 8

# While a run trains, checkpoints that cannot be written are told on the terminal, in caravan top and in metrics.prom.
# After a request to stop, what optim waits for is told too. The supervisor's clock is then a minute ahead, and it says
# why it goes on waiting. When optim ends, the supervisor sees that before it reads the last reports, and is not scheduled
# for seconds, again and again.
cat >ahead.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct item { // as libzmq has it
    void *socket;
    int fd;
    short events, revents;
};
static const char *file;
__attribute__((constructor)) static void begin(void) {
    file = getenv("AHEAD_FILE");
    unsetenv("LD_PRELOAD"); // the stages go on
}
// 1: a child has ended and is not reaped, 0: none has, -1: there is none.
static int ended(void) {
    siginfo_t info = {0};
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) ? -1 : info.si_pid != 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int ahead = 61;
    const int result = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
    if (clock != CLOCK_MONOTONIC || !file || access(file, F_OK) != 0) return result;
    if (ahead < 141 && ended() < 0) ahead += 4;
    now->tv_sec += ahead;
    return result;
}
int zmq_poll(struct item *items, int count, long timeout) {
    int ready = ((int (*)(struct item *, int, long))dlsym(RTLD_NEXT, "zmq_poll"))(items, count, timeout);
    for (int i = 0; i < 10 && ready > 0 && access(file, F_OK) == 0 && ended() == 0; i++) usleep(100000);
    for (int i = 0; i < count && ready > 0 && access(file, F_OK) == 0 && ended() > 0; i++)
        items[i].revents = items[i].socket ? 0 : POLLIN; // of a signal
    return ready;
}
END
ahead=
if ! grep -q '__[at]san_init' "$bin/caravan"; then # a sanitizer must be loaded first
    cc -shared -fPIC -o ahead.so ahead.c
    ahead="LD_PRELOAD=$work/ahead.so"
fi
late="--set run=$work/late --set optim.save_every=1 --set source.epochs=40"
env $ahead AHEAD_FILE="$work/ahead" "$bin/caravan" run p.yaml $late 2>late.err &
runner=$!
wait_for_step late 2
child=$(pgrep -P $runner -f caravan-optim)
weights=$(stat -c %s whole/checkpoints/latest/model.safetensors) state=$(stat -c %s whole/checkpoints/latest/training.safetensors)
[ "$state" -gt $((weights * 3 / 2)) ] || fail "the training state is too small for this test"
limited=$SECONDS
prlimit --pid "$child" --fsize=$((weights * 5 / 4)):unlimited # room for the weights that the other stages need
wait_for_line late.err "^caravan: optim: checkpoint of step [0-9]*: .*File too large; training goes on and saves a later step"
top_says() { "$bin/caravan" top p.yaml $late --once >top 2>&1 && grep -q "^no checkpoint could be written in the last [0-9]* attempts (see optim.log)" top; }
wait_until 120 top_says || fail "top: $(cat top)"
kill -TERM $runner
wait_for_line late.err "^caravan: stopping; the same command resumes the run"
seconds=$((SECONDS - limited)) # in which four lines and one a second are written
# At once, whatever came before: it is not said before a minute later again.
wait_for_line late.err "^caravan: optim: checkpoint of step [0-9]*: .*File too large; it is tried again for \(600\|5[5-9][0-9]\) s: make room in "
if [ -n "$ahead" ]; then
    touch ahead
    wait_for_line late.err "^caravan: waiting for optim to end: checkpoint of step [0-9]*: .*File too large; it is tried again"
fi
prlimit --pid "$child" --fsize=unlimited:unlimited
ends_with 75 $runner late.err
grep -q '^caravan_failed_checkpoints{run="p"} 0' late/metrics.prom || fail "metrics: $(cat late/metrics.prom)"
[ "$(grep -c "training goes on and saves" late.err)" -le $((seconds + 8)) ] || fail "late: a flood of lines: $(cat late.err)"

# A process that has failed tries its last checkpoint once: it tells nobody any more what it waits for. A directory that
# only a whole checkpoint replaces is in its way; that of step 2 is tried before it fails, too, for the state of that step,
# which may be due in its place, would be as good as the last one.
make_program complete "exec sed -u -e '/\"id\":\"e0-000001\"/e mkdir $work/gone/checkpoints/latest' \
    -e '/\"id\":\"e0-000002\"/s/}\$/,\"completions\":[{\"text\":\"a\"}]}/;t' -e '$complete'"
expect 65 "optim ended with exit code 65" timeout -k 10 120 "$bin/caravan" run p.yaml --set run="$work/gone" --set optim.save_every=2
grep -q "caravan-optim: checkpoint of step 2: .*latest: cannot write: Is a directory$" gone/logs/optim.log || fail "$(cat gone/logs/optim.log)"
