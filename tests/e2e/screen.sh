# What a terminal of 80 columns and 24 rows shows: whole words, the bottleneck by name, and a terminal that is afterwards
# as it was before.
. tests/e2e/common.sh
. tests/e2e/run-helpers.sh
trap '[ -z "${pid:-}" ] || kill $(pgrep -P $pid) 2>/dev/null || true; rm -rf "$work"' EXIT
make_data 2
make_model
make_pipeline ""
long="--set run=$work/run --set source.epochs=400 --set force.program=$work/slow.sh"

# Runs commands on a terminal: Terminal(command) has what was written so far in `text`.
cat >"$work/terminal.py" <<'END'
import fcntl, os, pty, re, select, signal, struct, subprocess, sys, termios, time

COLUMNS, ROWS, PATIENCE = 80, 24, 180

class Terminal:
    def __init__(self, command):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before, self.text = self.modes(), ""
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
                                        preexec_fn=self.prepare)

    # In the child: the terminal is its own, and signals do what they do, although a shell ignores some in the background.
    def prepare(self):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    def modes(self):
        return termios.tcgetattr(self.slave)[:4]

    def read(self):
        while select.select([self.master], [], [], 0.05)[0]:
            self.text += os.read(self.master, 65536).decode()

    # Waits until there is a match in the text, or in the modes, and returns it.
    def wait(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None and not condition():
                sys.exit(f"FAILED: no {what}: {self.text!r}")
            self.read()

    def raw(self):
        return not self.modes()[3] & (termios.ICANON | termios.ECHO)

    # The process must end like that and leave the modes of the terminal as they were.
    def ends(self, code):
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            self.read()
        self.read()
        got = self.process.poll()
        self.process.kill()
        assert got == code, (got, code, self.text)
        assert self.modes() == self.before, "the modes of the terminal have changed"

    def screens(self):
        return [screen.split("\r\n") for screen in self.text.split("\x1b[H\x1b[J")[1:]]
END
cat >"$work/run.py" <<'END'
import terminal as module
from terminal import *
module.COLUMNS = COLUMNS = 72
terminal = Terminal(sys.argv[1:])
shown = lambda: re.findall(r"\r\x1b\[K([^\r]*step [1-9][^\r]*)(?=\r)", terminal.text)
terminal.wait("progress", lambda: any(", bottleneck " in line for line in shown()))
while terminal.process.poll() is None: # what nobody reads would stop the run
    terminal.read()
stopping = r"\x1b\[Kcaravan: stopping; the same command resumes the run \(Ctrl-C again: stop\r\n  at once\)\r\n"
end = time.monotonic() + PATIENCE
while not re.search(stopping, terminal.text) and time.monotonic() < end: # the kernel may bring it later
    terminal.read()
for line in re.split(r"[\r\n]+", terminal.text.replace("\x1b[K", "")):
    assert len(line) <= COLUMNS, line
assert re.search(stopping, terminal.text), terminal.text
for line in shown():
    assert len(line) < COLUMNS, line
    # The whole line has states at its end, so it is cut, and between two facts.
    assert re.fullmatch(r"step \d+(, [\d.]+ groups/(s|min))?(, \d+:\d\d:\d\d left)?(, (reward|accuracy) -?[\d.]+|, bottleneck [a-z]+|"
                        r", \d+ of 1600 groups)*(; [a-z]+ [a-z]+( for [a-z]+)?)*", line), line
END
PYTHONPATH=$work python3 "$work/run.py" "$bin/caravan" run "$work/p.yaml" $long &
pid=$!
wait_for_step run 2

cat >"$work/top.py" <<'END'
from terminal import *
NAMES = ["source", "frames", "rollout", "refscore", "reward", "force", "optim"]

# Whether the screen, but for its last line, has everything: the first reports come one by one.
def whole(screen):
    text = "\n".join(screen)
    states = "  (working|waits for (a step|groups|weights))"
    busy = re.search(r"\nsource .* (\d+)%", text) # it waits for the others most of the time
    return (re.match(r"faults: step [1-9].* of 1600 groups.*\n", text) and busy and int(busy.group(1)) < 50 and
            re.search(r"\nbottleneck: [a-z]+, at work for \d+ % of the last minute( \(next: [a-z]+, \d+ %\))?\n", text) and
            re.search(r"\nstage         groups/min .*  state\n", text) and re.search(r"\nstep  reward .* loss\n[1-9]", text) and
            all(len(re.findall(rf"^{name} +[0-9].*{states}$", text, re.M)) == 1 for name in NAMES))

for ended in ["q", signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]:
    for attempt in range(10): # it gives up after five seconds without an answer, for which the supervisor may be too busy
        terminal = Terminal(sys.argv[1:])
        while not terminal.screens() and terminal.process.poll() is None:
            terminal.read()
        if terminal.screens():
            break
    terminal.wait("whole screen", lambda: any(whole(screen) for screen in terminal.screens()[:-1]))
    assert terminal.raw(), "keys wait for Enter"
    if ended == "q":
        os.write(terminal.master, b"q")
    else:
        terminal.process.send_signal(ended)
    terminal.ends(0 if ended in ("q", signal.SIGTERM, signal.SIGINT) else -ended)
    for screen in terminal.screens()[:-1]: # of the last one the last line was removed
        assert len(screen) <= ROWS and all(len(line) <= COLUMNS for line in screen), screen
        assert screen[-1] == "q ends this view; the run goes on", screen
END
PYTHONPATH=$work python3 "$work/top.py" "$bin/caravan" top "$work/p.yaml" $long --seconds 0.3 || fail "top"
kill -TERM $(pgrep -P $pid)
wait $pid || fail "run"
