"""Rounds: runs of a pipeline on one or more machines (network namespaces) under faults. BIN is the directory of the
programs. Network namespaces, mounts and so on need root; what cannot be had here is left out."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from page import Page

BIN = os.path.abspath(os.environ.get("BIN", "build/bin"))
CARAVAN = os.path.join(BIN, "caravan")
SHIM = os.path.join(os.path.dirname(BIN), "tests/storm/clock.so")
STARTS = 40  # of a machine beside one for each fault; a full disk takes some
STILL = 120  # seconds without progress and without a fault after which a run counts as hung
# Where the stages of a pipeline run, by machine, and the replicas of a stage, of optim its ranks. A pipeline without optim is an evaluation.
PIPELINES = {
    "one": ({"one": "source frames rollout refscore reward force optim"}, {}),
    "evaluation": ({"one": "source frames mark last"}, {"last": 2}),
    "two": ({"one": "source frames reward force optim", "two": "rollout refscore"}, {}),
    "replicas": ({"one": "source frames rollout refscore reward force optim"}, {"frames": 2, "rollout": 2, "refscore": 2}),
    "evaluation-two": ({"one": "source frames", "two": "mark last"}, {"mark": 2, "last": 2}),
    "ranks": ({"one": "source frames rollout refscore reward force optim"}, {"optim": 3}),
    "four": ({"one": "source frames", "two": "rollout", "three": "refscore reward", "four": "force optim"}, {"rollout": 2}),
    "rank-machines": ({"one": "source frames reward force optim", "two": "rollout refscore optim"}, {"optim": 2}),
    "adapters": ({"one": "source frames rollout refscore reward force optim"}, {}),
}
ADAPTERS = {"adapters": "lora: 4"}  # options of optim, by pipeline
SAMPLES = 4
STAGES = {
    "source": "data: {base}/data/train.jsonl, format: video-r1, media_root: {base}/data, template: none, group_size: 2, "
              "groups_per_step: 2, epochs: {epochs}, limit: {samples}",
    "frames": "min_pixels: 3136, max_pixels: 3136",
    "rollout": "max_new_tokens: 8",
    "refscore": "",
    "reward": "method: care",
    "force": "program: {base}/force.sh",
    "optim": "lr: 1.0e-6, ema_every: 2",
    "mark": "program: {base}/mark.sh",
    "last": "program: {base}/last.sh",
}
PROGRAMS = [stage for stage in STAGES if STAGES[stage].startswith("program: ")]


def trains(name):
    """Whether the pipeline has optim."""
    return any("optim" in stages.split() for stages in PIPELINES[name][0].values())


def own_mounts():
    """Starts this program again with mounts of its own, which go with it, where that is allowed."""
    if "STORM_MOUNTS" in os.environ:
        return
    alone = call("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt")
    os.environ["STORM_MOUNTS"] = "1" if alone else "0"
    if alone:
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-B", *sys.argv])


def call(*command):
    """Whether the command ends well; its output is dropped."""
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def kill(pids, number=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def children(pid):
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]


def descendants(pid):
    return [one for child in children(pid) for one in [child, *descendants(child)]]


class Here:
    """What this machine allows."""

    def __init__(self):
        name = f"storm-{os.getpid()}"
        self.mounts = os.environ.get("STORM_MOUNTS") == "1"
        self.spaces = self.mounts and call("ip", "netns", "add", name)
        enter = ["ip", "netns", "exec", name]
        self.spaces = self.spaces and call(*enter, "unshare", "-m", "true") and \
            call(*enter, "ip", "link", "add", "name", "try0", "type", "bridge")
        self.shaped = self.spaces and call(*enter, "tc", "qdisc", "add", "dev", "try0", "root", "tbf", "rate", "2mbit",
                                           "burst", "16kb", "latency", "100ms")
        self.lossy = self.spaces and call(*enter, "tc", "qdisc", "replace", "dev", "try0", "root", "netem", "loss", "10%")
        call("ip", "netns", "del", name)
        # The sanitizers' libraries must be the first ones of a program.
        plain = b"__asan_init" not in read(CARAVAN) and b"__tsan_init" not in read(CARAVAN)
        self.clock = plain and os.path.exists(SHIM)
        for have, without in [(self.mounts, "mounts: no full disks"), (self.spaces, "network namespaces: one machine only"),
                              (self.clock, "preloaded clock: no clock steps")]:
            if not have:
                print(f"storm: no {without}")
        if self.spaces and not self.lossy:
            print("storm: no netem: a lossy link is cut for 60 ms of every 300")
        if self.spaces and not self.shaped:
            print("storm: no tbf: no slow links")


class Machine:
    """One machine of a round: its directory, its namespace and its `caravan run`."""

    def __init__(self, run, index, name):
        self.run, self.name, self.index = run, name, index
        self.dir = f"{run.dir}/{name}"
        self.space = f"{run.name}-{index}" if run.spaces else None
        self.port = f"st{run.id}p{index}"  # of the bridge
        self.log = f"{run.dir}/{name}.err"
        self.store = f"{self.dir}/store-{name}" if run.spaces else f"{self.dir}/store"
        self.clock_file = f"{run.dir}/{name}.clock"
        self.process, self.finished, self.starts, self.start_at = None, False, 0, 0
        os.makedirs(self.dir)
        with open(self.clock_file, "wb") as file:
            file.write(struct.pack("<q", 0))
        if run.here.mounts:
            for path in (self.dir, self.store):
                os.makedirs(path, exist_ok=True)
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "storm", path], check=True)
        if run.spaces:
            self.connect()

    def connect(self):
        """Makes the namespace, and a cable from it to the bridge."""
        hub, inner = self.run.hub, f"st{self.run.id}m{self.index}"
        for command in (f"ip netns add {self.space}",
                        f"ip link add {inner} netns {self.space} type veth peer name {self.port} netns {hub}",
                        f"ip -n {self.space} addr add {self.address()}/24 dev {inner}",
                        f"ip -n {self.space} link set {inner} up", f"ip -n {self.space} link set lo up",
                        f"ip -n {hub} link set {self.port} master bridge0", f"ip -n {hub} link set {self.port} up"):
            subprocess.run(command.split(), check=True)
        self.inner = inner

    def address(self):
        return f"10.78.{self.run.id % 250}.{self.index + 1}"

    def environment(self):
        """Of every process of this machine: its clock."""
        clock = {"LD_PRELOAD": SHIM} if self.run.here.clock else {}
        return {**os.environ, "STORM_CLOCK": self.clock_file, **clock}

    def start(self):
        command = [CARAVAN, "run", self.run.file, "--set", f"run={self.dir}"]
        if self.space:
            # The other machines' directories cannot be seen.
            hide = "".join(f"mount -t tmpfs none {other.dir} && " for other in self.run.machines if other is not self)
            command += ["--machine", self.name, "--key", f"{self.run.dir}/{self.name}.key"]
            command = ["ip", "netns", "exec", self.space, "unshare", "-m", "sh", "-c", hide + 'exec "$0" "$@"', *command]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, env=self.environment(), stdin=subprocess.DEVNULL, stderr=log, stdout=log,
                                            start_new_session=True)
        self.starts += 1

    def processes(self):
        return [self.process.pid, *descendants(self.process.pid)] if self.process else []

    def find(self, target):
        """The process of a replica ("rollout-2", "supervisor"), or of a user's program ("force's program")."""
        if not self.process or target == "supervisor":
            return [self.process.pid] if self.process else []
        replica, _, program = target.partition("'s ")
        for child in children(self.process.pid):
            if f"/nodes/{replica}\0".encode() in read(f"/proc/{child}/cmdline"):
                return children(child) if program else [child]
        return []

    def reap(self, now):
        """Notices that `caravan run` has ended. Unless the run is over it is started again after half a second."""
        if not self.process or self.process.poll() is None:
            return
        code, self.process = self.process.returncode, None
        last = read(self.log).decode(errors="replace").strip().rpartition("\n")[2]
        self.finished = code == 0 and "done: " in last
        self.start_at = max(self.start_at, now + 0.5)
        if not self.finished:
            self.run.note(f"{self.name} ended with {code}: {last[:200]}")

    def link(self, *words):
        return call("ip", "-n", self.run.hub, "link", "set", self.port, *words)

    def shape(self, *words):
        """Sets or removes what both ends of the cable do with what they send."""
        for space, device in ((self.run.hub, self.port), (self.space, self.inner)):
            call("ip", "netns", "exec", space, "tc", "qdisc", words[0], "dev", device, "root", *words[1:])

    def remove(self):
        kill(self.processes())
        if self.process:
            self.process.wait()
        if self.space:
            call("ip", "netns", "del", self.space)
        if self.run.here.mounts:
            call("umount", "-l", self.store)
            call("umount", "-l", self.dir)


class Fault:
    """A line of a plan. `seconds` is how long it lasts."""

    def __init__(self, at, kind, machine, target="-", seconds=0.0):
        self.at, self.kind, self.machine, self.target, self.seconds = at, kind, machine, target, seconds
        self.until, self.hit, self.pids, self.pauses = None, False, [], []

    def __str__(self):
        return f"{self.at:.2f} {self.kind} {self.machine} {self.target.replace(' ', '_')} {self.seconds:.2f}"

    @staticmethod
    def parse(line):
        at, kind, machine, target, seconds = line.split()
        return Fault(float(at), kind, machine, target.replace("_", " "), float(seconds))

    def begin(self, run, now):
        """Does it; `hit` tells whether there was anything to do it to."""
        machine = run.machine[self.machine]
        up = machine.process is not None
        self.until = now + self.seconds
        if self.kind == "kill":
            self.pids = machine.find(self.target)
            kill(self.pids)
            self.hit = bool(self.pids)
        elif self.kind == "stop":
            self.pids = machine.find(self.target)
            kill(self.pids, signal.SIGSTOP)
            self.hit = bool(self.pids)
        elif self.kind in ("supervisor", "machine"):
            kill(machine.find("supervisor") if self.kind == "supervisor" else machine.processes())
            machine.start_at, self.hit = self.until, up
        elif self.kind == "cut":
            self.hit = machine.link("nomaster")
        elif self.kind == "unplug":
            self.hit = machine.link("down")
        elif self.kind == "slow":
            machine.shape("add", "tbf", "rate", self.target, "burst", "16kb", "latency", "100ms")
            self.hit = True
        elif self.kind == "lossy":
            if run.here.lossy:
                machine.shape("add", "netem", "loss", "10%")
            self.hit = True
        elif self.kind == "disk":
            directory = machine.store if self.target == "store" else machine.dir
            self.fill = f"{directory}/storm-fill"
            try:
                free = os.statvfs(directory)
                with open(self.fill, "wb", buffering=0) as file:
                    os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_bsize, 1))
                    while file.write(bytes(4096)):
                        pass
            except OSError:
                self.hit = os.path.exists(self.fill)
        elif self.kind == "clock":
            with open(machine.clock_file, "r+b") as file:
                file.write(struct.pack("<q", int(self.target)))
            self.hit = True
        elif self.kind == "sockets":
            sockets = f"{machine.dir}/sockets"
            for name in os.listdir(sockets) if os.path.isdir(sockets) else []:
                try:
                    os.unlink(f"{sockets}/{name}")
                except FileNotFoundError:  # its process has ended meanwhile
                    pass
            kill(machine.find(self.target))
            self.hit = up
        else:
            raise ValueError(f"no fault has the name {self.kind}")

    def go_on(self, run, now):
        if self.kind == "lossy" and not run.here.lossy:
            run.machine[self.machine].link(*(["nomaster"] if (now - self.at) % 0.3 < 0.06 else ["master", "bridge0"]))

    def end(self, run):
        machine = run.machine[self.machine]
        if self.kind == "stop":
            kill(self.pids, signal.SIGCONT)
        elif self.kind == "cut" or (self.kind == "lossy" and not run.here.lossy):
            machine.link("master", "bridge0")
        elif self.kind == "unplug":
            machine.link("up")
        elif self.kind in ("slow", "lossy"):
            machine.shape("del")
        elif self.kind == "disk" and os.path.exists(self.fill):
            os.unlink(self.fill)


class Run:
    """One round. After play(), `failure` says what is wrong, or None, and `recoveries` has a pair for each fault after
    whose end there was a time without another: the fault, and before it the longest of the times from its end to the
    next step and between the two steps thereafter, in seconds; none of an evaluation, whose progress is known every ten
    seconds. With a limit in seconds it ends there and is not compared. With a seed, a page shows the run meanwhile (page.py)
    on the machine that has the whole groups."""

    next_id = 0

    def __init__(self, base, here, name, plan, limit=None, page_seed=None):
        self.id = (os.getpid() + Run.next_id) % 10000
        Run.next_id += 1
        self.name = f"storm-{os.getpid()}-{self.id}"
        self.base, self.here, self.pipeline, self.plan = base, here, name, plan
        self.failure, self.notes, self.recoveries, self.machines = None, [], [], []
        self.limit, self.steps = limit, 0  # so far; of an evaluation: groups
        self.dir, self.file = f"{base.dir}/{self.id}", f"{base.dir}/{self.id}/p.yaml"
        stages, self.replicas = PIPELINES[name]
        self.spaces, self.hub = len(stages) > 1, f"{self.name}-hub"
        self.trains = trains(name)
        os.makedirs(self.dir)
        if self.spaces:
            for command in (f"ip netns add {self.hub}", f"ip -n {self.hub} link add name bridge0 type bridge",
                            f"ip -n {self.hub} link set bridge0 up"):
                subprocess.run(command.split(), check=True)
        for index, machine in enumerate(stages):
            self.machines.append(Machine(self, index, machine))
        self.machine = {machine.name: machine for machine in self.machines}
        self.write_pipeline(stages)
        place = {stage: machine for machine in reversed(stages) for stage in stages[machine].split()}  # rank 0 is on the first
        self.source, self.last = self.machine[place["source"]], self.machine[place["optim" if self.trains else "last"]]
        self.page = Page(CARAVAN, self.last, self.last.environment(), page_seed) if page_seed else None

    def write_pipeline(self, stages):
        text = f"name: storm\nrun: run\nmodel: {self.base.dir}/model\nseed: 7\nthreads: 1\nprecision: float32\nstages:\n"
        for stage in STAGES:
            places = [machine for machine in stages if stage in stages[machine].split()]
            if not places:
                continue
            epochs = self.base.groups[self.trains] // SAMPLES
            options = [STAGES[stage].format(base=self.base.dir, epochs=epochs, samples=SAMPLES)] if STAGES[stage] else []
            if stage in self.replicas:
                ranks = f"ranks: {self.replicas[stage]}, device: cpu, rank_timeout: 5"
                options += [ranks if stage == "optim" else f"replicas: {self.replicas[stage]}"]
            options += [ADAPTERS[self.pipeline]] if stage == "optim" and self.pipeline in ADAPTERS else []
            options += [f"on: [{', '.join(places)}]"] if self.spaces else []
            text += f"  - {stage}: {{{', '.join(options)}}}\n"
        if self.spaces:
            text += "machines:\n"
        for machine in self.machines if self.spaces else []:
            key = subprocess.run([CARAVAN, "keygen", f"{self.dir}/{machine.name}.key"], check=True, capture_output=True)
            text += f'  {machine.name}: {{address: {machine.address()}, key: "{key.stdout.decode().strip()}"}}\n'
        with open(self.file, "w") as file:
            file.write(text)

    def note(self, text):
        self.notes.append(f"{time.monotonic() - self.began:7.2f} {text}")

    def metrics(self):
        return read(f"{self.last.dir}/checkpoints/metrics.jsonl").split(b"\n")[:-1]

    def count(self):
        """The steps so far; of an evaluation the groups that the source is done with, by the last line of progress."""
        if self.trains:
            return len(self.metrics())
        shown = re.findall(rb"(\d+) of \d+ groups", read(self.source.log))
        return int(shown[-1]) if shown else 0

    def play(self):
        self.began = time.monotonic()
        if self.page:
            self.page.start()
        try:
            self.loop()
            if not self.failure and not self.limit:
                self.wait_for_last()
                self.check()
            if self.page and not self.failure:
                self.check_page()
        finally:
            self.seconds = time.monotonic() - self.began
            for machine in self.machines:
                if not machine.finished and not self.failure and machine.process:
                    self.note(f"{machine.name} did not hear of the end")

    def loop(self):
        waiting, active = list(self.plan), []
        moved_at, clear, over_at = time.monotonic(), None, None
        while True:
            now = time.monotonic()
            for fault in [fault for fault in waiting if fault.at <= now - self.began]:
                waiting.remove(fault)
                fault.begin(self, now)
                self.note(f"{fault}{'' if fault.hit else ' (nothing there)'}")
                active.append(fault)
            for fault in active:
                fault.go_on(self, now)
            for fault in [fault for fault in active if fault.until <= now]:
                active.remove(fault)
                fault.end(self)
                clear = fault if not active and fault.hit else None
                moved_at = now
            for machine in self.machines:
                machine.reap(now)
                if not machine.process and not machine.finished and machine.start_at <= now and not over_at:
                    machine.start()
                    if machine.starts > len(self.plan) + STARTS:
                        self.failure = f"{machine.name} ends again and again"
                        return
            count = self.count()
            if count > self.steps:
                if clear and self.trains:
                    clear.pauses.append(now - moved_at)
                if clear and len(clear.pauses) == 3:
                    self.recoveries.append((max(clear.pauses), clear))
                    clear = None
                moved_at = now
            self.steps = count
            if active:
                clear, moved_at = None, now
            # Without the source's machine nobody tells the others of the end.
            if self.source.finished and not over_at:
                over_at = now
            if over_at and (all(not machine.process for machine in self.machines) or now - over_at > 15 and not active):
                for machine in self.machines:
                    kill(machine.processes(), signal.SIGTERM)
                for fault in active:
                    fault.end(self)
                return
            if self.limit and now - self.began > self.limit:
                return
            if now - moved_at > STILL:
                self.failure = f"no {'step' if self.trains else 'group'} for {STILL} s"
                return
            time.sleep(0.01)

    def check(self):
        last = read(self.source.log).decode(errors="replace").strip().rpartition("\n")[2]
        groups, expected = self.base.groups[self.trains], self.base.expected.get(self.trains)
        done = f"{self.base.steps} steps, {groups} groups trained" if self.trains else f"{groups} groups done"
        steps = [json.loads(line)["step"] for line in self.metrics()]
        found = self.outcome()
        if f"done: {done}, 0 quarantined" not in last:
            self.failure = f"the last line is not 'done: {done}, 0 quarantined': {last}"
        elif self.trains and steps != list(range(1, self.base.steps + 1)):
            self.failure = f"steps {steps}"
        if self.failure or expected is None:
            return
        lacking = sorted(set(expected) - set(found))
        # A full disk may keep optim from writing down what it has trained. Without optim, what is settled is in the store.
        if self.trains and any(fault.kind == "disk" for fault in self.plan):
            lacking = []
        others = [(found[name], expected.get(name)) for name in found if found[name] != expected.get(name)]
        if lacking or others:
            self.failure = f"lacks groups {lacking}, has others (and should have): {others[:3]}"
        elif self.trains and self.weights() != self.base.weights.get(ADAPTERS.get(self.pipeline)):
            self.failure = "the weights differ"

    def wait_for_last(self):
        """The last machine may still be saving what it has trained."""
        until = time.monotonic() + STILL
        while self.last.process and self.last.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        self.last.reap(time.monotonic())

    def check_page(self):
        self.page.finish()
        self.failure = self.page.failure

    def weights(self):
        name = "adapter_model" if self.pipeline in ADAPTERS else "model"
        return read(f"{self.last.dir}/checkpoints/latest/{name}.safetensors")

    def outcome(self):
        """The groups in the last stage's store by their ids: of a training the steps that trained them; of an
        evaluation all that they have but `times`, in which each run has its own, and a stage that found its work in the
        store has none."""
        lines = subprocess.run([CARAVAN, "groups", "export", "--store", self.last.store], capture_output=True)
        groups = {group["id"]: group for group in map(json.loads, lines.stdout.splitlines())}
        for group in groups.values():
            group.pop("times", None)
        return {name: group.get("trained", {}).get("step") if self.trains else group for name, group in groups.items()}

    def print_failure(self, seed, number):
        print(f"FAILED: round {number} of seed {seed}: {self.failure}\n# storm plan: pipeline {self.pipeline}, "
              f"{self.base.epochs} epochs (save these lines and run make storm PLAN=FILE)\npipeline {self.pipeline} "
              f"{self.base.epochs}")
        print("\n".join(str(fault) for fault in self.plan))
        print("# what happened\n# " + "\n# ".join(self.notes))
        for machine in self.machines:
            tail = read(machine.log).decode(errors="replace").strip().split("\n")[-6:]
            print(f"# {machine.name}: " + f"\n# {machine.name}: ".join(tail))
            self.print_processes(machine)
        sys.stdout.flush()

    @staticmethod
    def print_processes(machine):
        """What each process of a machine does and waits in, thread by thread, and the last line of each log."""
        for pid in machine.processes():
            words = read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")
            threads = os.listdir(f"/proc/{pid}/task") if os.path.isdir(f"/proc/{pid}/task") else []
            waits = [(re.search(r"State:\s+(\w)", read(f"/proc/{pid}/task/{thread}/status").decode()) or "??")[1] + " " +
                     read(f"/proc/{pid}/task/{thread}/wchan").decode() + " " +
                     read(f"/proc/{pid}/task/{thread}/syscall").decode().split(" ")[0] for thread in threads]
            ticks = read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(") ")[2].split(" ")[11:13]
            print(f"# process {pid} {' '.join(words[:3])}: {'; '.join(waits)}; {'+'.join(ticks)} ticks")
        logs = f"{machine.dir}/logs"
        for name in sorted(os.listdir(logs)) if os.path.isdir(logs) else []:
            print(f"# {name}: {read(f'{logs}/{name}').decode(errors='replace').strip().rpartition(chr(10))[2][:200]}")

    def remove(self):
        """Ends what is left of it."""
        if self.page:
            self.page.remove()
        for machine in self.machines:
            machine.remove()

    def close(self, keep):
        if keep:
            shutil.copytree(self.dir, keep, symlinks=True, dirs_exist_ok=True, ignore_dangling_symlinks=True,
                            ignore=lambda path, names: [name for name in names if "sockets" in path or name == "sockets"])
        self.remove()
        if self.spaces:
            call("ip", "netns", "del", self.hub)
        shutil.rmtree(self.dir, ignore_errors=True)


class Base:
    """Model, data, and the results of the undisturbed runs, which all rounds share. `groups` and `expected` have an entry
    for trainings (True) and one for evaluations, whose groups take a sixteenth of the time; `weights` has one for the
    options of adapters, and None for all weights."""

    def __init__(self, here, epochs, pause=0.1):
        self.dir, self.epochs, self.steps = tempfile.mkdtemp(prefix="storm-"), epochs, epochs * SAMPLES // 2
        directory = self.dir
        self.groups = {True: epochs * SAMPLES, False: 16 * epochs * SAMPLES}
        self.weights, self.expected, self.seconds = {}, {}, 0
        for command in (["make-demo-data", f"{directory}/data", "--clips", "2", "--held-out", "1", "--examples", "64"],
                        ["init", f"{directory}/model", "--shape", "pipelines/miniature/shape.json", "--train-tokenizer",
                         f"{directory}/data/text.txt", "--seed", "3"]):
            subprocess.run([CARAVAN, *command], check=True, stderr=subprocess.DEVNULL)
        # The advantages of a random model are all zero. A pause for each group lets a run last without much work.
        self.write_program("force", r's/"advantages":\[[^]]*\]/"advantages":[1.0,-1.0]/', pause)
        self.write_program("mark", 's/"times":/"scores":{"accuracy":[0.0,1.0]},&/')
        self.write_program("last", "", pause / 10)

    def write_program(self, name, script, pause=0):
        path = f"{self.dir}/{name}.sh"
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\nexec sed -u -e '{script}'" + (f" -e 'e sleep {pause}'\n" if pause else "\n"))
        os.chmod(path, 0o755)

    def run_undisturbed(self, here, names):
        """Runs a training, one of adapters and an evaluation, as far as `names` has such pipelines. Returns whether they
        ended well."""
        kinds = {(trains(name), ADAPTERS.get(name)) for name in names}
        runs = [Run(self, here, name, []) for name in ("one", "evaluation", "adapters")
                if (trains(name), ADAPTERS.get(name)) in kinds]
        threads = [threading.Thread(target=run.play) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in runs:
            self.expected[run.trains] = run.outcome()
            if run.trains:
                self.weights[ADAPTERS.get(run.pipeline)] = run.weights()
                run.failure = run.failure or (None if run.weights() else "the last checkpoint has no weights")
            self.seconds = max(self.seconds, run.seconds)
            if run.failure:
                run.print_failure("-", "undisturbed")
            run.close(None)
        return not any(run.failure for run in runs)

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)
