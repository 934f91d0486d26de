"""A page of a run under faults: `caravan view` beside it, a client that asks all the while, kill -9 and new starts. After
the run the page must say what `caravan groups` says, and must not have changed the run's directory."""
import ctypes
import hashlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.parse

CLONE_NEWNET = 0x40000000
PATIENCE = 60  # seconds for an answer, and for the line with the address, on a machine that is busy
# Of a training. What `groups select` prints has completions, which the groups of the evaluations here have not. The page
# keeps what it has found with the last four: the first four are asked all the while.
CONDITIONS = ["completions.tokens >= 8", "trained.step >= 2", "format = 0", "advantages > 0", "finish = length", "accuracy = 1"]
ROUTES = ["/", "/api/run", "/api/live", "/api/metrics", "/api/map?columns=9", "/api/groups?sort=-reward&limit=20",
          "/api/quarantine", "/api/trace", "/trace.json"]
ROUTES += ["/api/groups?limit=9&" + urllib.parse.urlencode({"where": where}) for where in CONDITIONS[:4]]


def fingerprints(directory):
    """What each file of a directory has; but of the locks of LMDB, in which readers have slots."""
    found = {}
    for path, _, names in os.walk(directory):
        for name in names:
            whole = os.path.join(path, name)
            if name.endswith("-lock") or not os.path.isfile(whole):
                continue
            with open(whole, "rb") as file:
                found[whole] = hashlib.sha256(file.read()).hexdigest()
    return found


class Page:
    """The page of one machine's part of a run, in a thread that is in this machine's network namespace."""

    def __init__(self, caravan, machine, environment, seed):
        self.caravan, self.machine, self.environment = caravan, machine, environment
        self.log = f"{machine.dir}.view"  # beside the run's directory
        self.random = random.Random(seed)
        self.process, self.failure, self.over, self.removed = None, None, False, False
        self.requests, self.kills, self.starts, self.longest = 0, 0, 0, 0.0
        self.thread = threading.Thread(target=self.work, daemon=True)

    def start(self):
        self.thread.start()

    def finish(self):
        """After the run: compares, and ends. `failure` says what is wrong, or None."""
        self.over = True
        self.thread.join()

    def remove(self):
        """Ends without comparing."""
        self.removed = True
        if self.thread.ident:
            self.thread.join()

    def work(self):
        try:
            self.enter()
            self.watch()
            if not self.removed:
                self.compare()
        except Exception as error:  # a failed answer, too
            self.failure = self.failure or f"the page: {error!r}; its last line: {self.last_line()}"
        finally:
            if self.process:
                self.process.kill()
                self.process.wait()

    def enter(self):
        if not self.machine.space:
            return
        with open(f"/run/netns/{self.machine.space}") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def last_line(self):
        with open(self.log, "a+") as log:
            log.seek(0)
            return log.read().strip().rpartition("\n")[2][:300]

    # ---- the process ----

    def open(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([self.caravan, "view", "--listen", "127.0.0.1:0", f"run={self.machine.dir}"],
                                            env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.starts += 1
        until = time.monotonic() + PATIENCE
        while True:
            with open(self.log) as log:
                found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\w+)\n", log.read())
            if found:
                break
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no page, exit code {self.process.poll()}")
            time.sleep(0.01)
        self.port, self.token, self.seq = int(found[1]), found[2], 0

    def ask(self, path, *codes):
        """Returns the answer, of JSON the value; None if the code is not 200 but one of `codes`."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", path, headers={"Cookie": f"caravan-{self.port}={self.token}"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.requests += 1
        self.longest = max(self.longest, time.monotonic() - began)
        if answer.status in codes:
            return None
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return json.loads(body) if answer.getheader("Content-Type") == "application/json" else body

    def check_files(self):
        """Nothing of the run is open for writing, but the locks of LMDB."""
        pid, root = self.process.pid, os.path.realpath(self.machine.dir)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                path = os.readlink(f"/proc/{pid}/fd/{fd}")
                with open(f"/proc/{pid}/fdinfo/{fd}") as info:
                    flags = int(re.search(r"flags:\s*(\d+)", info.read())[1], 8)
            except FileNotFoundError:  # closed meanwhile
                continue
            if path.startswith(root + "/") and flags & os.O_ACCMODE and not path.endswith("-lock"):
                raise RuntimeError(f"{path} is open for writing")
        with open(f"/proc/{pid}/maps") as maps:
            for line in maps:
                words = line.split(None, 5)
                if len(words) == 6 and "w" in words[1] and "s" in words[1] and words[5].startswith(root + "/") and \
                        not words[5].strip().endswith("-lock"):
                    raise RuntimeError(f"{words[5].strip()} is mapped for writing")

    # ---- during the run ----

    def watch(self):
        kill_at = 0
        while not self.over and not self.removed:
            if not os.path.exists(f"{self.machine.dir}/pipeline.yaml"):  # the run has not begun
                time.sleep(0.02)
                continue
            if not self.process:
                self.open()
                kill_at = time.monotonic() + self.random.uniform(0, 3)
            for path in self.random.sample(ROUTES, len(ROUTES)):
                if time.monotonic() > kill_at or self.over or self.removed:
                    break
                self.ask(path)
                if self.process.poll() is not None:
                    raise RuntimeError(f"the page ended with {self.process.returncode}")
            else:
                live = self.ask(f"/api/live?after={self.seq}")
                if live["seq"] < self.seq:
                    raise RuntimeError(f"seq {live['seq']} after {self.seq}")
                self.seq = live["seq"]
                self.ask_one_group()
                self.check_files()
                time.sleep(0.05)
            if time.monotonic() > kill_at and not self.over:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
                self.process = None
                self.kills += 1

    def ask_one_group(self):
        rows = self.ask("/api/groups?limit=1&sort=-number")["rows"]
        for name in rows["id"]:
            if name is None:
                continue
            answer = self.ask(f"/api/group/{urllib.parse.quote(name, safe='')}", 404)
            for medium in answer["group"].get("media", []) if answer else []:
                self.ask(f"/frames/{medium['key']}/0.png", 404)

    # ---- after the run ----

    def matches(self, where):
        """The ids of the groups for which a condition holds."""
        found, cursor = [], None
        while True:
            query = {"where": where, **({"after": cursor} if cursor else {})}
            answer = self.ask("/api/groups?" + urllib.parse.urlencode(query))
            if not answer["exact"]:
                continue  # it goes on
            found += answer["rows"]["id"]
            cursor = answer["cursor"]
            if not cursor:
                break
        if len(found) != answer["matched"] or len(set(found)) != len(found):
            raise RuntimeError(f"{where}: {answer['matched']} groups, but {len(found)} rows")
        return sorted(found)

    def groups(self, *words):
        result = subprocess.run([self.caravan, "groups", *words], capture_output=True, check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def wait_for_end(self):
        until = time.monotonic() + PATIENCE
        while self.ask("/api/live")["state"] != "finished":
            if time.monotonic() > until:
                raise RuntimeError(f"the run is over, but {self.ask('/api/live')}")
            time.sleep(0.1)

    def compare(self):
        if not self.process:
            self.open()
        if self.machine.finished:  # a machine that was killed, or whose disk was full, may not have written that it is over
            self.wait_for_end()
        before = fingerprints(self.machine.dir)
        exported = self.groups("export", "--store", self.machine.store)
        if self.matches("") != sorted(group["id"] for group in exported):
            raise RuntimeError("the page has other groups than `groups export`")
        for where in CONDITIONS if self.machine.run.trains else []:
            selected = self.groups("select", self.machine.store, "--where", where)
            if self.matches(where) != sorted({line["id"].rpartition("/")[0] for line in selected}):
                raise RuntimeError(f"{where}: the page has other groups than `groups select`")
        self.compare_metrics()
        for path in ROUTES:
            self.ask(path)
        self.ask_one_group()
        self.check_files()
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(PATIENCE):
            raise RuntimeError(f"the page ended with {self.process.returncode} after SIGTERM")
        self.process = None
        after = fingerprints(self.machine.dir)
        if before != after:
            raise RuntimeError(f"changed: {sorted(name for name in before | after if before.get(name) != after.get(name))}")

    def compare_metrics(self):
        shown, lines = self.ask("/api/metrics?points=2000"), []
        if self.machine.run.trains:
            with open(f"{self.machine.dir}/checkpoints/metrics.jsonl") as file:
                lines = [json.loads(line) for line in file]
        columns = {"step": shown["step"], **{key: shown[key]["last"] for key in ("reward", "loss", "grad_norm") if lines}}
        for key, column in columns.items():
            if column != [line[key] for line in lines]:
                raise RuntimeError(f"metrics: {key} is {column}")
