# Processes that say what they may not, or nonsense, to the supervisor of a run lose their connection, and nothing else
# happens: the run goes on to its end. The messages are made from the table in PROTOCOL.md.
. tests/e2e/common.sh
command -v python3 >/dev/null || { echo "no python3: left out"; exit 0; }
make_questions 8
make_program wait "while [ ! -e $work/go ]; do sleep 0.1; done; exec cat"
cat >"$work/p.yaml" <<'END'
run: run
stages:
  - source: {data: data.jsonl, template: none, group_size: 2}
  - wait: {program: ./wait.sh}
END
"$bin/caravan" run "$work/p.yaml" 2>"$work/err" &
pid=$!
trap 'kill -9 $pid 2>/dev/null || true; rm -rf "$work"' EXIT
all_up() { [ "$(grep -cs '^caravan_replica_up{.*} 1$' "$work/run/metrics.prom")" = 2 ]; }
wait_until 120 all_up || fail "not both processes are there: $(cat "$work/err")"
python3 - shared/wire/PROTOCOL.md "$work/run/nodes/caravan-1" >"$work/out" <<'END' || fail "$(cat "$work/out" "$work/err")"
import re, socket, struct, sys

# The fields of each kind, and its number.
kinds, kind = {}, None
for line in open(sys.argv[1]):
    row = [cell.strip(" `") for cell in line.split("|")]
    if len(row) == 8 and row[1].isdigit():
        kind = row[2]
        kinds[kind] = (int(row[1]), [])
    if len(row) == 8 and kind and row[4] and row[5] in ("int", "real", "string"):
        kinds[kind][1].append((row[4], row[5]))
config = dict(line.rstrip("\n").split(" ", 1) for line in open(sys.argv[2]) if " " in line)

def pack(value):
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    return b"\xda" + struct.pack(">H", len(value)) + value.encode()

def message(kind, **values):
    number, fields = kinds[kind]
    assert not set(values) - {name for name, _ in fields}, kind
    empty = {"int": 0, "real": 0.0, "string": ""}
    body = b"".join(pack(values.get(name, empty[type])) for name, type in fields)
    return b"\xdc" + struct.pack(">H", len(fields) + 1) + pack(number) + body

class Peer:
    """A DEALER socket of ZMTP 3.0 without encryption."""
    def __init__(self, name, purpose):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        self.socket.connect(re.sub("^ipc://", "", config["listen"]))
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        self.read(64)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        self.socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        self.frame()
        version = int(re.search(r"version (\d+)", open(sys.argv[1]).readline())[1])
        self.hello = message("HELLO", protocol=version, schema=1, run=config["run"], name=name, replica=1,
                             purpose=purpose, incarnation=7)
    def read(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the connection was closed"
            data += part
        return data
    def frame(self):
        flags, size = self.read(2)
        if flags & 2:
            size = int.from_bytes(bytes([size]) + self.read(7), "big")
        return flags & 4, self.read(size)
    def send(self, data):
        self.socket.sendall(b"\x02" + struct.pack(">Q", len(data)) + data)
    def answer(self):
        command = True
        while command: # a heartbeat of ZMTP's own
            command, body = self.frame()
        return next(kind for kind, (known, _) in kinds.items() if known == body[1])
    def tell(self, wrong):
        """Sends a message that must be refused. The process whose place this peer takes comes back."""
        kind = "UNKNOWN_PEER" # it was faster
        while kind != "REFUSED":
            if kind == "UNKNOWN_PEER":
                self.send(self.hello)
            if kind == "WELCOME":
                self.send(message("HEARTBEAT"))
                self.send(wrong)
            kind = self.answer()
            assert kind in ("UNKNOWN_PEER", "WELCOME", "REFUSED", "HEARTBEAT"), kind

for name, wrong in (
    ("wait", message("STATUS", name="source", replica=1, done=1000000, state="finished")),
    ("wait", message("END", reason="the run is mine")),
    ("source", message("END", code=12, reason="no exit code")),
    ("wait", message("STATUS", name="wait")[:-3]),
    ("wait", b"nonsense"),
):
    Peer(name, "report").tell(wrong)
    print("refused")
END
[ "$(grep -c refused "$work/out")" = 5 ] || fail "refusals: $(cat "$work/out")"
touch "$work/go"
wait $pid || fail "exit $?: $(cat "$work/err")"
grep -q "done: 8 groups done, 0 quarantined" "$work/err" || fail "$(cat "$work/err")"
grep -q "refused a message of wait-1: END: only the source and the supervisors may end the run" "$work/err" || fail "$(cat "$work/err")"
