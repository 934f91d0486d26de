#!/usr/bin/env python3
"""fake_server.py [PORT [finished|empty|store]]: answers the routes of tools/view/ROUTES.md from a made-up run, with the headers
of the real server, and the page from tools/view. fake_server.py --html FILE: the same as one file.

Prints its address. Reports that a browser sends about the content's policy are printed too."""
import base64, hashlib, json, math, pathlib, re, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fixture

PAGE = pathlib.Path(__file__).resolve().parents[2] / "tools/view"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " \
         "form-action 'none'; frame-ancestors 'none'"
PAGES = re.compile(r"/(groups|group/[^/]*|compare|trace)?")
FIGURES = ["number", "step", "count", "right", "reward", "std", "accuracy", "format", "bonus", "length", "longest", "surprise", "lowest",
           "likelihood", "kl", "consistency", "named", "truncated", "in_flight"]
COLUMNS = ["number", "id", "step", "sample", "state", "question", "count", "right", "marks"] + FIGURES[4:]


class Refused(Exception):
    def __init__(self, code, text, column=None):
        super().__init__(text)
        self.code, self.column = code, column


def script():
    return "\n".join(path.read_text() for path in sorted(PAGE.glob("*.js")))


def columns(rows, keys):
    return {key: [row.get(key) for row in rows] for key in keys}


# ---- conditions ----

class Condition:
    """FIELD OP VALUE, joined by and, or and parentheses. `missing` are the fields that no group of the run has."""
    SCORES = {"accuracy": ("rewards", "accuracy"), "format": ("rewards", "format"), "bonus": ("rewards", "bonus"),
              "total": ("rewards", "total"), "verdict": ("consistency", "verdict"), "answer_probability": ("reference", "answer_probability"),
              "probability": ("consistency", "probability")}
    GROUP = ["right", "count", "std", "reward", "length", "surprise", "likelihood", "lowest", "named", "truncated", "step", "number"]

    def __init__(self, text):
        self.text, self.at = text, 0
        self.tokens = [(m.group(), m.start()) for m in re.finditer(r'\(|\)|"[^"]*"|[=!<>]+|[^\s()=!<>"]+', text)]
        self.tree = self.parse_or()
        if self.at < len(self.tokens):
            self.refuse("expected and, or or the end")

    def refuse(self, text):
        at = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text.encode())
        raise Refused(400, text, at)

    def take(self):
        if self.at == len(self.tokens):
            self.refuse("expected FIELD OP VALUE, as in accuracy = 1")
        self.at += 1
        return self.tokens[self.at - 1][0]

    def next_is(self, word):
        return self.at < len(self.tokens) and self.tokens[self.at][0] == word

    def parse_or(self):
        tree = self.parse_and()
        while self.next_is("or"):
            self.at += 1
            tree = ("or", tree, self.parse_and())
        return tree

    def parse_and(self):
        tree = self.parse_one()
        while self.next_is("and"):
            self.at += 1
            tree = ("and", tree, self.parse_one())
        return tree

    def parse_one(self):
        field = self.take()
        if field == "(":
            tree = self.parse_or()
            if not self.next_is(")"):
                self.refuse("expected )")
            self.at += 1
            return tree
        known = field in self.SCORES or field == "finish" or field.startswith("group.") and field[6:] in self.GROUP
        if not known:
            self.at -= 1
            self.refuse(f"no field has the name '{field[:60]}'")
        sign = self.take()
        if sign not in ("=", "!=", "<", "<=", ">", ">="):
            self.at -= 1
            self.refuse(f"expected =, !=, <, <=, > or >= behind {field}")
        value = self.take()
        if field != "finish":
            try:
                value = float(value)
            except ValueError:
                self.at -= 1
                self.refuse(f"{field} is compared with a number, not with '{value}'")
        return ("is", field, sign, value)

    def holds(self, entry):
        return any(self.holds_for(self.tree, entry, i) for i in range(max(1, len(entry["marks"]))))

    def holds_for(self, tree, entry, index):
        if tree[0] == "and":
            return self.holds_for(tree[1], entry, index) and self.holds_for(tree[2], entry, index)
        if tree[0] == "or":
            return self.holds_for(tree[1], entry, index) or self.holds_for(tree[2], entry, index)
        _, field, sign, value = tree
        group = entry["group"]
        if field.startswith("group."):
            found = entry["row"][field[6:]]
        elif field == "finish":
            found = group["completions"][index]["finish"] if group.get("completions") else None
        else:
            outer, inner = self.SCORES[field]
            values = group.get(outer, {}).get(inner, [])
            found = values[index] if index < len(values) else None
        if found is None:
            return False
        return {"=": found == value, "!=": found != value, "<": found < value, "<=": found <= value, ">": found > value,
                ">=": found >= value}[sign]

    def missing(self, tree=None):
        tree = tree or self.tree
        if tree[0] != "is":
            return sorted(set(self.missing(tree[1]) + self.missing(tree[2])))
        return ["probability"] if tree[1] == "probability" else []


# ---- the routes ----

class Source:
    """What the routes answer about one fixture; `state` is running, finished or not active."""

    def __init__(self, data, state="running", others=()):
        self.data, self.state, self.others, self.seq, self.begun = data, state, list(others), 100, time.monotonic()

    def replicas(self):
        return [(name, stage) for stage, count in fixture.STAGES for name in fixture.names(stage, count)]

    def run(self, query):
        data = self.data
        stages = [{"name": stage, "from": fixture.STAGES[i - 1][0] if i else None,
                   "replicas": [{"name": n, "number": k + 1, "machine": None} for k, n in enumerate(fixture.names(stage, count))]}
                  for i, (stage, count) in enumerate(fixture.STAGES)]
        settings = {
            "source": {"data": ["data/train.jsonl", False], "group_size": ["8", True], "groups_per_step": ["4", True], "max_staleness": ["1", False],
                       "epochs": ["2", False], "shuffle": ["true", True], "seed": ["11", False]},
            "frames": {"fps": ["2", True], "min_frames": ["4", True], "max_frames": ["16", True], "min_pixels": ["3136", False], "max_pixels": ["3136", False]},
            "rollout": {"temperature": ["1.0", True], "top_p": ["1.0", False], "max_new_tokens": ["48", False], "seed": ["11", False]},
            "refscore": {"span": ["content", True], "logprobs": ["all", False]},
            "reward": {"method": ["care", True], "coefficient": ["0.5", True], "margin": ["0.01", False], "upper_bound": ["0.95", True]},
            "judge": {"judge": ["concludes", True]},
            "optim": {"lr": ["4e-4" if data.name == "replicas" else "2e-4", False], "schedule": ["cosine", True], "clip_norm": ["1", False], "kl": ["0", True],
                      "ema_every": ["10", True], "ema_decay": ["0.995", True], "api_token": ["(hidden)", False],
                      "notes": ["<b>not markup</b>", False]}}
        if self.state == "store":
            stages, settings = [], {}
        first = self.data.groups[0]["row"]["step"] if data.groups else None
        return {"name": data.name, "kind": "store" if self.state == "store" else "run", "path": f"runs/{data.name}",
                "state": "finished" if self.state == "store" else self.state, "method": None if self.state == "store" else "care", "start": fixture.START,
                "version": "caravan 0.1.0", "device": "cpu", "seconds": None if self.state == "running" else data.clock - fixture.START,
                "groups_per_step": 4, "in_flight_max": 8, "group_size": 8, "steps": data.steps + 3, "first_step": first,
                "last_step": data.groups[-1]["row"]["step"] if data.groups else None, "others": self.others,
                "stages": stages, "settings": settings,
                "has": {"trains": True, "rewards": True, "bonus": True, "judge": True, "probability": False, "format": True, "named": True,
                        "reference": True, "reference_logprobs": True, "logprobs": True, "frames": True, "tokenizer": True, "rows": True,
                        "events": True},
                "notes": ["Frames of two clips were evicted."]}

    def live(self, query):
        after = int(query.get("after", "-1"))
        seq = self.seq + int((time.monotonic() - self.begun) / 2) if self.state == "running" else self.seq
        now, data, replicas = self.data.clock, self.data, self.replicas()
        busy = {"source": 0.02, "frames": 0.16, "rollout": 0.3, "refscore": 0.31, "reward": 0.16, "judge": 0.14, "optim": 0.86}
        over = self.state != "running"
        history = [s for s in range(0, seq + 1) if s > after] if not over else []
        wave = lambda s, i: round(min(1, max(0, busy[replicas[i][1]] + 0.06 * math.sin(s / 5 + i))), 4)
        done = len(data.groups)
        if self.state == "store":
            replicas, history = [], []
        state = {"source": "waits for a step", "rollout": "working", "frames": "working", "optim": "waits for groups"}
        return {
            "seq": seq, "time": now + (0 if over else 2 * (seq - self.seq)), "state": "finished" if self.state == "store" else self.state,
            "step": data.steps if data.groups else None, "done": done, "total": done + 12, "rate": 31.4 if done else None,
            "left": None if over or not done else 12 / 31.4, "in_flight": 0 if over else 8, "reissued": 3, "quarantined": len(data.quarantined),
            "policy": data.steps if done else 0, "reference": data.steps // 10 * 10 if done else 0,
            "replicas": {
                "name": [n for n, _ in replicas], "state": ["finished" if over else state.get(s, "waits for groups") for _, s in replicas],
                "rate": [round(31.4 / dict(fixture.STAGES)[s] + i / 10, 3) for i, (_, s) in enumerate(replicas)],
                "busy": [wave(seq, i) for i in range(len(replicas))], "held": [8 if s == "source" else int(s == "rollout") for _, s in replicas],
                "waiting": [2 if n == "rollout" else 0 for n, _ in replicas], "done": [done // dict(fixture.STAGES)[s] for _, s in replicas],
                "tokens_rate": [310.5 if s == "rollout" else None for _, s in replicas],
                "typical": [None if s == "source" else fixture.WORK[s] for _, s in replicas],
                "oldest_seq": [done if s == "rollout" and not over else None for _, s in replicas],
                "oldest_age": [0.5 if s == "rollout" and not over else None for _, s in replicas],
                "restarts": [int(n == "rollout-3") for n, _ in replicas], "slow": [n == "refscore-2" and not over for n, _ in replicas]},
            "history": {"time": [now - 2 * (seq - s) for s in history], "busy": [[wave(s, i) for i in range(len(replicas))] for s in history]},
            "events": [e for e in data.events] if after < 0 and self.state != "store" else []}

    def span(self, query, low, high):
        return int(query.get("from", low)), int(query.get("to", high))

    def metrics(self, query):
        if self.state == "store":
            return {"step": [], "first": []}
        rows = [dict(m, no_signal=m["all_correct"] + m["all_wrong"]) for m in self.data.metrics]
        low, high = self.span(query, 0, 1 << 60)
        rows = [m for m in rows if low <= m["step"] <= high]
        points = int(query.get("points", 400))
        size = max(1, math.ceil(len(rows) / points))
        bins = [rows[i:i + size] for i in range(0, len(rows), size)]
        out = {"step": [b[-1]["step"] for b in bins], "first": [b[0]["step"] for b in bins]}
        for key in (rows[0] if rows else {}):
            if key == "step":
                continue
            known = [[m[key] for m in b if m[key] is not None] for b in bins]
            out[key] = {"last": [b[-1][key] for b in bins], "min": [min(v) if v else None for v in known],
                        "max": [max(v) if v else None for v in known], "mean": [fixture.mean(v) for v in known]}
        return out

    def map(self, query):
        low, high = self.span(query, 0, 1 << 60)
        condition = Condition(query["where"]) if query.get("where") else None
        steps = sorted({g["row"]["step"] for g in self.data.groups if low <= g["row"]["step"] <= high})
        width = int(query.get("columns", 400))
        size = max(1, math.ceil(len(steps) / width))
        bins = [steps[i:i + size] for i in range(0, len(steps), size)]
        place = {step: i for i, b in enumerate(bins) for step in b}
        most = fixture.GROUP_SIZE
        counts = [[0] * (most + 2) for _ in bins]
        for entry in self.data.groups:
            if entry["row"]["step"] in place and (not condition or condition.holds(entry)):
                right = entry["row"]["right"]
                if right is not None and entry["row"]["count"] != most:
                    share = right / entry["row"]["count"]
                    right = most if share == 1 else 0 if share == 0 else min(most - 1, max(1, round(share * most)))
                counts[place[entry["row"]["step"]]][most + 1 if right is None else right] += 1
        return {"size": most, "first": [b[0] for b in bins], "step": [b[-1] for b in bins], "counts": counts}

    def groups(self, query):
        found, condition = self.data.groups, None
        if query.get("where"):
            condition = Condition(query["where"])
            found = [g for g in found if condition.holds(g)]
        if query.get("steps"):
            match = re.fullmatch(r"(\d*)-(\d*)", query["steps"])
            if not match:
                raise Refused(400, f"steps: expected FIRST-LAST, not '{query['steps'][:60]}'")
            low, high = int(match.group(1) or 0), int(match.group(2) or 1 << 60)
            found = [g for g in found if low <= g["row"]["step"] <= high]
        if query.get("text"):
            wanted = query["text"].lower()
            found = [g for g in found if wanted in json.dumps(g["group"], ensure_ascii=False).lower()]
        sort = query.get("sort", "number")
        key = sort.lstrip("-")
        if key not in FIGURES + ["id", "sample"]:
            raise Refused(400, f"sort: no column has the name '{key[:60]}'")
        known = sorted([g for g in found if g["row"][key] is not None], key=lambda g: g["row"][key], reverse=sort.startswith("-"))
        found_sorted = known + [g for g in found if g["row"][key] is None]
        limit, after = int(query.get("limit", 200)), int(query.get("after", 0))
        if limit > 200:
            raise Refused(400, "limit: at most 200")
        rows = [g["row"] for g in found_sorted[after:after + limit]]
        return {"total": len(self.data.groups), "matched": len(found), "exact": True, "scanned": len(self.data.groups),
                "cursor": str(after + limit) if limit and after + limit < len(found) else None,
                "missing": condition.missing() if condition else [], "rows": columns(rows, COLUMNS)}

    def group(self, identity):
        entry = self.data.by_id.get(identity)
        if not entry:
            raise Refused(404, f"no group has the id '{identity[:60]}'")
        return {key: value for key, value in entry.items() if key != "row"}

    def trace(self, query):
        begin, end = fixture.START, self.data.clock
        low, high = max(begin, float(query.get("from", begin))), min(end, float(query.get("to", end)))
        names = [s for s, _ in fixture.STAGES]
        inside = [g for g in self.data.groups if any(t[0] <= high and t[1] >= low for t in g["group"]["times"].values())]
        bars = [{"stage": names.index(s), "replica": t[2], "number": g["number"], "from": t[0], "to": t[1]}
                for g in inside for s, t in g["group"]["times"].items()]
        pieces = min(400, max(1, int((high - low) * 1000)))
        width = (high - low) / pieces
        share = [[0.0] * len(names) for _ in range(pieces)]
        for stage in range(len(names)):
            at = low
            for b in sorted((b for b in bars if b["stage"] == stage), key=lambda b: b["from"]):
                first, last = max(at, b["from"]), min(high, b["to"])
                at = max(at, last)
                while first < last:
                    piece = min(pieces - 1, int((first - low) / width))
                    edge = max(min(last, low + (piece + 1) * width), first + 1e-6)
                    share[piece][stage] += (edge - first) / width
                    first = edge
        stages = []
        for i, name in enumerate(names):
            had = sorted(g["waits"][name][1] for g in inside if name in g["waits"])
            stages.append({"name": name, "groups": len(had), "typical": had[len(had) // 2] if had else None, "slowest": had[-1] if had else None,
                           "busy": fixture.mean([s[i] for s in share]), "waited": fixture.mean([g["waits"][name][0] for g in inside if name in g["waits"]]),
                           "had": fixture.mean(had)})
        return {"start": begin, "end": end, "from": low, "to": high,
                "busy": {"time": [low + i * width for i in range(pieces)], "width": width, "share": [[round(min(1, s[i]), 4) for s in share] for i in range(len(names))]},
                "stages": columns(stages, ["name", "groups", "typical", "slowest", "busy", "waited", "had"]),
                "groups": {"number": [g["number"] for g in inside], "id": [g["group"]["id"] for g in inside], "step": [g["row"]["step"] for g in inside],
                           "issued": [g["row"]["issued"] for g in inside]},
                "bars": columns(bars, ["stage", "replica", "number", "from", "to"])}

    def quarantine(self, query):
        found = {}
        for stage, reason, identity in self.data.quarantined:
            found.setdefault((stage, reason), []).append(identity)
        return [{"stage": s, "reason": r, "count": len(ids), "ids": ids[:50]} for (s, r), ids in sorted(found.items(), key=lambda i: -len(i[1]))]


class Server:
    def __init__(self, state="running"):
        self.known = {}  # answers by route and query; another one when they change: a request that runs keeps the old one
        first = fixture.made() if state != "empty" else fixture.made(steps=0, hostile=False)
        self.sources = {"replicas": Source(first, "running" if state == "empty" else state, ["before", "after"]),
                        "before": Source(fixture.made(3, "before", -0.35, 64, 16, False), "finished"),
                        "after": Source(fixture.made(4, "after", 0.3, 64, 16, False), "finished")}
        self.frames = {m["key"] for s in self.sources.values() for g in s.data.groups for m in g["group"]["media"]}

    def compare(self, query):
        if "a" not in query or "b" not in query:
            raise Refused(400, "a and b are needed")
        one, two = (self.source(query[side]).data for side in "ab")
        sides = []
        for data in (one, two):
            sides.append({g["group"]["sample_id"]: g for g in data.groups if g["group"].get("sample_id") and g["marks"]})
        samples = sorted(set(sides[0]) & set(sides[1]))
        pairs = [(sides[0][s]["row"], sides[1][s]["row"]) for s in samples]
        size = max([r["count"] for p in pairs for r in p], default=0)
        matrix = [[0] * (size + 1) for _ in range(size + 1)]
        for a, b in pairs:
            matrix[a["right"]][b["right"]] += 1

        def interval(values):
            values = [v for v in values if v is not None]
            if not values:
                return None
            half = 1.96 * fixture.std(values) / math.sqrt(len(values))
            middle = fixture.mean(values)
            return [middle, middle - half, middle + half] if len(values) > 1 else [middle, None, None]
        figures = {"accuracy": lambda r: r["accuracy"], "all right": lambda r: float(r["right"] == r["count"]), "format": lambda r: r["format"],
                   "bonus": lambda r: r["bonus"], "reward": lambda r: r["reward"], "likelihood": lambda r: r["likelihood"],
                   "surprise": lambda r: r["surprise"], "tokens": lambda r: r["length"]}
        scores = [{"name": name, "a": interval([of(a) for a, _ in pairs]), "b": interval([of(b) for _, b in pairs]),
                   "difference": interval([of(b) - of(a) for a, b in pairs if of(a) is not None and of(b) is not None])} for name, of in figures.items()]
        change = lambda p: p[1]["right"] / p[1]["count"] - p[0]["right"] / p[0]["count"]
        cell, kept = query.get("cell"), pairs
        if cell in ("better", "worse", "alike"):
            kept = [p for p in pairs if {"better": change(p) > 0, "worse": change(p) < 0, "alike": change(p) == 0}[cell]]
        elif cell:
            i, j = map(int, cell.split(","))
            kept = [p for p in pairs if p[0]["right"] == i and p[1]["right"] == j]
        kept = sorted(kept, key=lambda p: (-abs(change(p)), p[0]["sample"]))
        medium = lambda row: one.by_id[row["id"]]["group"]["media"][0]
        rows = [{"sample": a["sample"], "question": a["question"], "key": medium(a)["key"], "frames": medium(a)["frames"], "a": a["id"], "b": b["id"],
                 "marks_a": a["marks"], "marks_b": b["marks"], "right_a": a["right"], "right_b": b["right"], "change": change((a, b)), "likelihood_a": a["likelihood"],
                 "likelihood_b": b["likelihood"]} for a, b in kept[:200]]
        of = lambda data: {"name": data.name, "kind": "run", "size": 8, "groups": len(data.groups)}
        return {"a": of(one), "b": of(two), "samples": len(samples), "repeated": one.name == "replicas" or two.name == "replicas",
                "better": sum(change(p) > 0 for p in pairs), "worse": sum(change(p) < 0 for p in pairs), "alike": sum(change(p) == 0 for p in pairs),
                "scores": scores, "matrix": matrix, "matched": len(kept), "cursor": None,
                "rows": columns(rows, ["sample", "question", "key", "frames", "a", "b", "marks_a", "marks_b", "right_a", "right_b", "change", "likelihood_a",
                                       "likelihood_b"])}

    def source(self, name):
        if name not in self.sources:
            raise Refused(404, f"nothing has the name '{name[:60]}'")
        return self.sources[name]

    def answer(self, path, query):
        """The content type and the bytes of a route. Only /api/live says something else the next time."""
        if path == "/api/live":
            return self.compute(path, query)
        key, known = (path, tuple(sorted(query.items()))), self.known
        if key not in known:
            known[key] = self.compute(path, query)
        return known[key]

    def compute(self, path, query):
        source = self.source(query.get("of", "replicas"))
        if path == "/api/compare":
            found = self.compare(query)
        elif path.startswith("/api/group/"):
            found = source.group(path[len("/api/group/"):])
        elif path.startswith("/api/log/"):
            name = path[len("/api/log/"):]
            if name not in [n for n, _ in source.replicas()]:
                raise Refused(404, f"no replica has the name '{name[:60]}'")
            return "text/plain; charset=utf-8", "".join(f"12:00:{i:02} {name}: group {i} <done>\n" for i in range(60)).encode()
        elif path == "/trace.json":
            found = {"traceEvents": []}
        elif path in ("/api/run", "/api/live", "/api/metrics", "/api/map", "/api/groups", "/api/trace", "/api/quarantine"):
            found = getattr(source, path[len("/api/"):])(query)
        else:
            raise Refused(404, "there is no such page")
        return "application/json", json.dumps(found).encode()

    def html(self, texts=60):
        """The page as one file, as `caravan view --html` writes it."""
        source = self.source("replicas")
        rows = columns([g["row"] for g in source.data.groups], COLUMNS)
        groups = dict(source.groups({"limit": "0"}), rows=rows, cursor=None)
        chosen = [g for g in source.data.groups if g["row"]["named"]][:texts] + [source.data.hostile[k] for k in ("markup", "control", "sample", "many")]
        routes = {"/api/run": source.run({}), "/api/live": source.live({}), "/api/metrics": source.metrics({}), "/api/map": source.map({}),
                  "/api/groups": groups, "/api/quarantine": source.quarantine({}), "/api/trace": source.trace({}),
                  "/api/compare": self.compare({"a": "before", "b": "after"})}
        for group in chosen:
            routes["/api/group/" + group["group"]["id"]] = source.group(group["group"]["id"])
        frames = {f"{m['key']}/{n}": "data:image/png;base64," + base64.b64encode(fixture.frame(m["key"], n)).decode()
                  for g in chosen for m in g["group"]["media"] for n in range(m["frames"])}
        data = json.dumps({"routes": routes, "frames": frames, "left_out": [f"The texts and frames of {len(rows['id']) - len(chosen)} of {len(rows['id'])} groups."]})
        style, code = (PAGE / "view.css").read_text(), script()
        of = lambda text: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        policy = f"default-src 'none'; script-src {of(code)}; style-src {of(style)}; img-src data:; base-uri 'none'; form-action 'none'"
        page = (PAGE / "index.html").read_text()
        page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">')
        page = page.replace('<link rel="stylesheet" href="/view.css">', "<style>" + style + "</style>")
        return page.replace('<script src="/view.js"></script>', '<script type="text/plain" id="data">' + data.replace("<", "\\u003c") +
                            "</script>\n<script>" + code + "</script>")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    reports = []  # what browsers said about the content's policy

    def log_message(self, *_):
        pass

    def send(self, code, kind, body, headers=()):
        self.send_response(code)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), ("Content-Security-Policy", POLICY + "; report-uri /report"),
                            ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"), ("Cross-Origin-Resource-Policy", "same-origin"),
                            ("Cross-Origin-Opener-Policy", "same-origin"), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/report":
            self.reports.append(body.decode(errors="replace"))
            print("report", self.reports[-1], flush=True)
        self.send(204 if self.path == "/report" else 405, "text/plain", b"")

    def do_GET(self):
        if self.server.gone:
            self.close_connection = True
            return
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        try:
            query = {}
            for key, values in parse_qs(parts.query, keep_blank_values=True).items():
                if len(values) > 1:
                    raise Refused(400, f"{key[:60]} stands twice")
                query[key] = values[0]
            frame = re.fullmatch(r"/frames/([0-9a-f]{32})/(\d+)\.png", path)
            if path.startswith(("/api/", "/trace.json")):
                kind, body = self.server.routes.answer(path, query)
                self.send(200, kind, body, [("Cache-Control", "no-store")])
            elif frame and frame.group(1) in self.server.routes.frames and int(frame.group(2)) < 4:
                self.send(200, "image/png", fixture.frame(frame.group(1), int(frame.group(2))), [("Cache-Control", "max-age=31536000, immutable")])
            elif path == "/view.css":
                self.send(200, "text/css; charset=utf-8", (PAGE / "view.css").read_bytes(), [("Cache-Control", "no-cache")])
            elif path == "/view.js":
                self.send(200, "text/javascript; charset=utf-8", script().encode(), [("Cache-Control", "no-cache")])
            elif path == "/favicon.ico":
                self.send(204, "image/x-icon", b"")
            elif PAGES.fullmatch(path) or parts.path.startswith("/group/"):
                self.send(200, "text/html; charset=utf-8", (PAGE / "index.html").read_bytes(), [("Cache-Control", "no-cache")])
            else:
                raise Refused(404, "there is no such page")
        except Refused as refused:
            self.send(refused.code, "application/json", json.dumps({"error": str(refused), "column": refused.column}).encode())


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A browser that goes away is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def start(port=0, state="running"):
    """Starts the server in a thread; returns it. Its address is server.address."""
    server = QuietServer(("127.0.0.1", port), Handler)
    server.daemon_threads, server.gone = True, False  # gone: no answer any more
    server.routes = Server(state)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    if sys.argv[1:2] == ["--html"]:
        pathlib.Path(sys.argv[2]).write_text(Server("finished").html())
    else:
        print(start(int(sys.argv[1]) if len(sys.argv) > 1 else 0, *sys.argv[2:3]).address, flush=True)
        threading.Event().wait()
