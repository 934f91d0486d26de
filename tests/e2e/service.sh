# A run under a service manager: it says that it is ready, how it goes, that it is alive and that it stops.
. tests/e2e/common.sh
make_questions 1000 # more than are done before the run is stopped
make_program slow "env >$work/env; exec sed -u 'e sleep 0.2'"
cat >"$work/p.yaml" <<'END'
run: run
stages:
  - source: {data: data.jsonl, template: none, group_size: 2}
  - slow: {program: ./slow.sh}
END

command -v python3 >/dev/null || { echo "no python3: no service manager is tried"; exit 0; }

# listen ADDRESS: a service manager that writes what it is told to $work/told, until it is told that the run stops.
listen() {
    python3 - "$1" "$work/told" <<'END' &
import socket, sys
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.bind(sys.argv[1].replace("@", "\0"))
manager.settimeout(120)
with open(sys.argv[2], "w", buffering=1) as out:
    line = ""
    while line != "STOPPING=1":
        line = manager.recv(4096).decode()
        print(line, file=out)
END
    listener=$!
    while [ ! -e "$work/told" ]; do sleep 0.05; done
}
for address in "$work/notify" "@caravan-$$"; do
    rm -rf "$work/told" "$work/run"
    listen "$address"
    # A sign each 1.5 s: what does not fit into the socket, which may hold ten, is lost if the manager is slow to read.
    NOTIFY_SOCKET=$address WATCHDOG_USEC=3000000 "$bin/caravan" run "$work/p.yaml" 2>"$work/err" &
    pid=$!
    wait_for_line "$work/told" "^STATUS=[0-9]* of 1000 groups"
    signs() { [ "$(grep -c "^WATCHDOG=1$" "$work/told")" -ge 3 ]; }
    wait_until 60 signs || fail "no signs of life: $(cat "$work/told")"
    kill -TERM $pid
    ends_with 75 $pid "$work/err"
    wait $listener || fail "the run does not say that it stops: $(cat "$work/told")"
    [ "$(head -1 "$work/told")" = READY=1 ] || fail "not ready: $(cat "$work/told")"
    if grep "NOTIFY_SOCKET\|WATCHDOG" "$work/env"; then fail "a stage could speak for the run"; fi
done
expect 64 "NOTIFY_SOCKET: nowhere is not the path of a socket" env NOTIFY_SOCKET=nowhere "$bin/caravan" run "$work/p.yaml"
