# Where memory is short, what a user or a file decides the size of is refused with its size; anything smaller ends the
# process, which is started again, and the run goes on.
. tests/e2e/common.sh
if grep -q '__[at]san_init' "$bin/caravan"; then echo "left out: sanitizers take more address space than any limit"; exit 0; fi
make_tiny_model
echo '{"id":"a","prompt":{"messages":[{"role":"user","content":"What is it?"}],"problem_type":"OCR","solution":"<answer>x</answer>"}}' >"$work/group.jsonl"
limited() (
    ulimit -v 1000000
    exec "$@" <"$work/group.jsonl"
)
expect 69 'out of memory: cannot allocate [0-9]* bytes for tensors' \
    limited "$bin/caravan-rollout" --stdio --model "$work/model" --device cpu --threads 1 --max-new-tokens 100000

# Groups of a megabyte take fresh memory, which the stage may have no more of; LMDB may be the first that needs some.
question=$(head -c 1000000 /dev/zero | tr '\0' x)
for number in $(seq 60); do
    printf '{"id":"%s","prompt":{"messages":[],"problem_type":"OCR","solution":"<answer>x</answer>","question":"%s"}}\n' "$number" "$question"
done >"$work/data.jsonl"
# The run waits until its memory is short.
make_program copy "exec sed -u -e 'e sleep 0.1' -e '10,999e while [ ! -e $work/go ]; do sleep 0.05; done'"
cat >"$work/p.yaml" <<'END'
run: run
stages:
  - source: {data: data.jsonl, format: caravan}
  - copy: {program: ./copy.sh}
END
# Freed memory goes back to the system, so that each group needs fresh memory, however many came before.
MALLOC_MMAP_THRESHOLD_=131072 "$bin/caravan" run "$work/p.yaml" 2>"$work/run.err" &
pid=$!
worked() { [ "$("$bin/caravan" groups ls "$work/run" 2>/dev/null | wc -l)" -ge 3 ]; } # and so has started whole
wait_until 120 worked || fail "no group is done: $(cat "$work/run.err")"
child=$(pgrep -o -f "caravan program --node=$work/run/nodes/copy")
prlimit --pid "$child" --as=1:unlimited
touch "$work/go"
ends_with 0 $pid "$work/run.err"
grep -qE "^caravan: copy ended with exit code 69: copy: (out of memory: [0-9]* x [0-9]* bytes|.*groups.lmdb: .*the address space is limited)" "$work/run.err" || fail "no small memory that was short: $(cat "$work/run.err")"
[ "$("$bin/caravan" groups ls "$work/run" | wc -l)" = 60 ] || fail "groups are missing"
