"""A made-up run for the tests of the page: seeded, with all that a real one can have, and what it should not have."""
import functools, math, random, struct, zlib

START = 1764000000.25
GROUP_SIZE = 8
STEPS, PER_STEP = 100, 4
STAGES = [("source", 1), ("frames", 2), ("rollout", 3), ("refscore", 2), ("reward", 1), ("judge", 1), ("optim", 1)]
COLOURS = {"red": (208, 48, 40), "green": (48, 160, 64), "blue": (56, 88, 216), "yellow": (224, 208, 48)}
WORK = {"source": 0.001, "frames": 0.01, "rollout": 0.03, "refscore": 0.02, "reward": 0.001, "judge": 0.001, "optim": 0.09}

# Strings that must stay text: in the question, the id of the sample, the texts and the reasons of one group each.
HOSTILE = {
    "markup": "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script></script><b>bold</b>",
    "control": "before\u202eafter\u0000nul\u001besc\u0007bell\u200bzero\ufeffbom\ud7ff\ufffd",
    "word": "w" * 1_000_000,
    "sample": "\"quoted\" 'id' <b> ../../etc/passwd " + "\u00fc" * 230,
}


def names(stage, count):
    return [stage if i == 0 else f"{stage}-{i + 1}" for i in range(count)]


def png(width, height, pixels):
    """A PNG of RGB bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + \
        chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@functools.lru_cache(None)
def frame(key, number, size=56):
    """Frame `number` of a key: a shape that moves and changes its colour."""
    chance = random.Random(key)
    first, then = chance.sample(sorted(COLOURS), 2)
    colour = COLOURS[first if number < 2 else then]
    grey = chance.randrange(90, 170)
    x, y = chance.randrange(14, 42), 10 + 11 * number
    rows = bytearray()
    for row in range(size):
        for column in range(size):
            inside = abs(column - x) < 11 and abs(row - y) < 4 or abs(column - x) < 4 and abs(row - y) < 11
            rows += bytes(colour) if inside else bytes((grey,) * 3)
    return png(size, size, bytes(rows))


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def std(values):
    if len(values) < 2:
        return 0.0
    middle = sum(values) / len(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1))


class Fixture:
    """A run with `groups` (dictionaries as in ROUTES.md, with what a row needs under "row"), `metrics`, `events`."""

    def __init__(self, seed=7, name="replicas", skill=0.0, samples=300, steps=STEPS, hostile=True):
        self.chance, self.name, self.skill, self.steps = random.Random(seed), name, skill, steps
        self.groups, self.metrics, self.events, self.quarantined = [], [], [], []
        self.clock, self.free = START, {}
        order = list(range(samples))
        self.chance.shuffle(order)
        number = 0
        for step in range(1, steps + 1):
            issued = self.clock
            members = []
            for _ in range(PER_STEP):
                epoch, at = divmod(number, samples)
                group = self.make_group(number, f"e{epoch}-{at:06}", str(order[at]), step, issued)
                number += 1
                members.append(group)
                self.groups.append(group)
                if number % 67 == 31:
                    self.groups.append(self.quarantine(number, epoch, at, step, issued))
                    number += 1
            if step == 52:
                self.events.append(event(self.clock, "rollout-3", "restarted", "rollout-3 was killed by signal 9; it is started again", step))
                self.clock += 0.4
            if step == 60:
                self.events.append(event(self.clock, "refscore-2", "slow", "refscore-2 has had group 241 for 0:40 (typical 0:03)", step))
            self.clock = max(g["row"]["settled"] for g in members)
            self.metrics.append(self.make_metrics(step, members, issued))
        if hostile:
            self.make_hostile()
        for i, group in enumerate(self.groups):
            group["position"] = i + 1
            group["previous"] = self.groups[i - 1]["group"]["id"] if i else None
            group["next"] = self.groups[i + 1]["group"]["id"] if i + 1 < len(self.groups) else None
        self.by_id = {g["group"]["id"]: g for g in self.groups}
        for group in self.groups:
            sample = group["group"].get("sample_id")
            alike = [g for g in self.groups if g["group"].get("sample_id") == sample and sample is not None]
            group["same"] = [{"id": g["group"]["id"], "step": g["row"]["step"], "marks": g["row"]["marks"], "reward": g["row"]["reward"]}
                             for g in alike[:50]]

    def make_group(self, number, identity, sample, step, issued):
        chance = self.chance
        first_question = chance.random() < 0.5
        question = "What colour is the shape at first?" if first_question else "What colour does the shape become?"
        options = ["red", "green", "blue", "yellow"]
        right = chance.randrange(4)
        dip = 0.65 if 51 <= step <= 58 and not first_question else 0
        hit = min(0.985, max(0.05, 0.5 + self.skill + 0.55 * (1 - math.exp(-step / 25)) + chance.gauss(0, 0.1) - dip))
        completions, accuracy, form, bonus, verdict, reason, chosen, cuts, ids, reference = [], [], [], [], [], [], [], [], [], []
        likelihood = []
        for index in range(GROUP_SIZE):
            correct = chance.random() < hit
            named = dip > 0 and not correct and chance.random() < 0.7
            letter = right if correct or named else chance.choice([i for i in range(4) if i != right])
            broken = chance.random() < 0.02 + 0.15 * named
            verb = "At first the shape is" if first_question else "The shape becomes"
            pieces = ["<think>", verb.split(" ")[0]] + [" " + w for w in verb.split(" ")[1:]] + [f" {options[letter]}", "."]
            if chance.random() < 0.3:
                pieces += [" I", " see", " it", " in", " frame", f" {chance.randrange(1, 5)}", "."]
            if named:
                pieces += ["</think>", "<answer>", "ABCD"[letter], f" {options[letter]}", ".", "</think>"]
            else:
                pieces += [] if broken else ["</think>"]
            pieces += ["<answer>", "ABCD"[letter], "</answer>"]
            text = "".join(pieces)
            ends, end = [], 0
            for piece in pieces:
                end += len(piece)
                ends.append(end)
            ends.append(end)
            spread = 0.25 * math.exp(-step / 40) + 0.02
            logprobs = [round(-min(14.0, chance.expovariate(1 / spread)), 6) for _ in ends]
            if named:
                logprobs[chance.randrange(5, len(ends))] = -round(chance.uniform(3, 12), 5)
            completions.append({"logprobs": logprobs, "text": text, "finish": "eos" if chance.random() > 0.004 else "length"})
            reference.append([round(min(0.0, v + chance.gauss(0, 0.3 + (2.5 if abs(v) > 2 else 0))), 6) for v in logprobs])
            accuracy.append(1.0 if correct else 0.0)
            form.append(0.0 if broken else 1.0)
            likely = min(0.99, max(0.05, 0.5 + 0.45 * (1 - math.exp(-step / 30)) + chance.gauss(0, 0.06)))
            likelihood.append(round(likely, 6))
            consistent = chance.random() < 0.93
            verdict.append(1 if consistent else 0)
            reason.append(f"the last option named is {'ABCD'[letter if consistent else (letter + 1) % 4]}, the answer is {'ABCD'[letter]}")
            chosen.append("ABCD"[letter])
            cuts.append(ends)
            ids.append([[len(ends) - 1, 151645]])
        middle = mean([p for p, a in zip(likelihood, accuracy) if a]) or 0
        bonus = [0.5 if a and p >= middle - 0.11 else 0.0 for p, a in zip(likelihood, accuracy)]
        total = [a + f + b for a, f, b in zip(accuracy, form, bonus)]
        deviation, average = std(total), sum(total) / len(total)
        marks = [int(a) + 2 * int(f) + 4 * (b > 0) + 8 * (v == 0) for a, f, b, v in zip(accuracy, form, bonus, verdict)]
        times, waits, at = {}, {}, issued + 0.002 * (number % PER_STEP)
        for stage, replicas in STAGES:
            replica = chance.randrange(replicas)
            begin = max(at + chance.expovariate(300), self.free.get((stage, replica), 0) - (0.05 if stage == "rollout" else 0))
            had = WORK[stage] * chance.uniform(0.5, 1.6)
            self.free[stage, replica] = begin + had * (0.3 if stage in ("optim", "rollout") else 1)
            times[stage] = [round(begin, 4), round(begin + had, 4), replica + 1]
            waits[stage] = [round(begin - at, 4), round(had, 4)]
            at = begin + had
        key = f"{zlib.crc32(sample.encode()):08x}" * 4
        group = {
            "v": 1, "id": identity, "sample_id": sample,
            "prompt": {"messages": [{"role": "user", "content": [{"type": "video", "video": f"data/clips/{int(sample):04}.mp4"},
                                                                 {"type": "text", "text": question}]}],
                       "problem_type": "multiple choice", "solution": f"<answer>{'ABCD'[right]}</answer>",
                       "question": question + "\nOptions:\n" + "".join(f"{'ABCD'[i]}. {o}\n" for i, o in enumerate(options)), "options": options},
            "requires": {"policy": step - 1, "reference": (step - 1) // 10 * 10, "exact": 1, "order": number},
            "media": [{"kind": "video", "key": key, "frames": 4, "height": 56, "width": 56, "seconds_per_grid": 1.0,
                       "timestamps": [0, 0.625, 1.25, 1.875]}],
            "completions": completions,
            "reference": {"version": (step - 1) // 10 * 10, "answer_probability": likelihood,
                          "answer_logprob": [round(math.log(p), 6) for p in likelihood], "logprobs": reference},
            "consistency": {"verdict": verdict, "reason": reason, "judge": "concludes"},
            "rewards": {"accuracy": accuracy, "format": form, "bonus": bonus, "total": total},
            "advantages": [round((t - average) / (deviation + 1e-4), 6) if deviation else 0.0 for t in total],
            "trained": {"step": step}, "times": times}
        lengths = [len(c) for c in cuts]
        everything = [v for c in completions for v in c["logprobs"]]
        row = {"number": number, "id": identity, "step": step, "sample": sample, "state": "trained", "question": question,
               "count": len(completions), "right": int(sum(accuracy)), "marks": marks, "reward": average, "std": deviation,
               "accuracy": mean(accuracy), "format": mean(form), "bonus": mean([float(b > 0) for b in bonus]), "length": mean(lengths),
               "longest": max(lengths), "surprise": -mean(everything), "lowest": min(everything), "likelihood": mean(likelihood),
               "kl": None, "consistency": mean(verdict), "truncated": sum(c["finish"] == "length" for c in completions),
               "named": sum(a == 0 and c == "ABCD"[right] for a, c in zip(accuracy, chosen)),
               "in_flight": at - issued, "issued": issued, "settled": at}
        return {"number": number, "group": group, "prompt_tokens": 86, "lengths": lengths, "cuts": cuts, "ids": ids, "why_no_cuts": None,
                "media": [{"available": True, "why": None}], "chosen": chosen, "solution": "ABCD"[right], "marks": marks,
                "waits": waits, "row": row}

    def quarantine(self, number, epoch, at, step, issued):
        kind = number % 3
        stage, reason = [("frames", "data/clips/*.mp4: cannot be decoded"), ("rollout", "the prompt has * tokens, more than max_prompt_tokens *"),
                         ("frames", "data/clips/*.mp4: no such file")][kind]
        group = self.make_group(number, f"e{epoch}-q{number:05}", str(1000 + number), step, issued)
        inner = group["group"]
        for key in ("completions", "reference", "consistency", "rewards", "advantages", "trained"):
            inner.pop(key)
        inner["times"] = {k: v for k, v in inner["times"].items() if k in ("source", stage)}
        inner["quarantine"] = {"stage": stage, "reason": reason.replace("*", "17")}
        inner["media"] = []
        group.update(lengths=[], cuts=[], ids=[], media=[], chosen=[], marks=[],
                     waits={k: v for k, v in group["waits"].items() if k in inner["times"]})
        for key in ("right", "reward", "std", "accuracy", "format", "bonus", "length", "longest", "surprise", "lowest", "likelihood",
                    "consistency", "named", "truncated"):
            group["row"][key] = None
        group["row"].update(state="quarantined", marks=[], count=0)
        self.quarantined.append((stage, reason, inner["id"]))
        self.events.append(event(issued, stage, "quarantined", f"group {number} is quarantined by {stage}: {inner['quarantine']['reason']}", step))
        return group

    def make_metrics(self, step, members, issued):
        rows = [g["row"] for g in members]
        seconds = self.clock - issued
        late = 4.1 if step == 54 else abs(self.chance.gauss(0, 0.01)) if 50 < step < 60 else abs(self.chance.gauss(0, 0.0008))
        return {"step": step, "loss": self.chance.gauss(0, 1e-3), "nll": mean([r["surprise"] for r in rows]),
                "grad_norm": abs(self.chance.gauss(0.3, 0.1)) + (2.5 if self.chance.random() < 0.04 else 0),
                "lr": 4e-4 * 0.5 * (1 + math.cos(math.pi * step / self.steps)), "tokens": sum(sum(g["lengths"]) for g in members),
                "reward": mean([r["reward"] for r in rows]), "accuracy": mean([r["accuracy"] for r in rows]),
                "format": mean([r["format"] for r in rows]), "bonus": 0.5 * mean([r["bonus"] for r in rows]), "kl": 0,
                "reward_std": mean([r["std"] for r in rows]), "all_correct": mean([float(r["right"] == 8) for r in rows]),
                "all_wrong": mean([float(r["right"] == 0) for r in rows]), "bonus_rate": mean([r["bonus"] for r in rows]),
                "completion_length": mean([r["length"] for r in rows]), "truncated": sum(r["truncated"] for r in rows) / 32,
                "entropy": mean([r["surprise"] for r in rows]), "consistency": None, "consistent": mean([r["consistency"] for r in rows]),
                "logprob_difference": late / 50, "logprob_difference_max": late, "age_mean": 0 if step < 2 else 1.0, "age_max": 1,
                "groups": 4, "completions": 32, "prompt_tokens": 344, "seconds": mean([r["settled"] - r["issued"] for r in rows]) / 3,
                "epoch": step / self.steps, "time": self.clock, "rate": 4 / seconds if step > 1 else None,
                "likelihood": mean([r["likelihood"] for r in rows])}

    def make_hostile(self):
        """Fills groups of the first steps with what a page must not believe, and leaves fields out."""
        def fill(group, text=None, question=None, sample=None):
            inner = group["group"]
            if text is not None:
                for i, completion in enumerate(inner["completions"]):
                    completion["text"] = text
                    group["cuts"][i] = None
                group["why_no_cuts"] = "The tokens do not give the text."
                inner["consistency"]["reason"] = [text[:300]] * len(inner["completions"])
            if question is not None:
                inner["prompt"]["question"] = question
                inner["prompt"]["options"] = [question[:200], "b", "c", "d"]
                group["row"]["question"] = question[:120]
            if sample is not None:
                inner["sample_id"] = group["row"]["sample"] = sample
        trained = [g for g in self.groups if g["group"].get("completions")]
        fill(trained[0], HOSTILE["markup"], HOSTILE["markup"], HOSTILE["markup"])
        fill(trained[1], HOSTILE["control"], HOSTILE["control"], HOSTILE["control"])
        fill(trained[2], HOSTILE["word"], HOSTILE["word"][:5000])
        fill(trained[3], sample=HOSTILE["sample"])
        self.hostile = {"markup": trained[0], "control": trained[1], "word": trained[2], "sample": trained[3],
                        "tokens": trained[4], "many": trained[5], "bare": trained[6], "evicted": trained[7]}
        # 10,000 tokens
        completion, cuts = trained[4]["group"]["completions"][0], []
        completion["text"] = "".join(f" t{i}" for i in range(10000))
        end = 0
        for i in range(10000):
            end += len(f" t{i}")
            cuts.append(end)
        completion["logprobs"] = [-(i % 50) / 10 for i in range(10000)]
        trained[4]["group"]["reference"]["logprobs"][0] = [-(i % 40) / 10 for i in range(10000)]
        trained[4]["cuts"][0], trained[4]["lengths"][0], trained[4]["ids"][0] = cuts, 10000, []
        # 64 completions
        many, times = trained[5], 64 // GROUP_SIZE
        for table in (many["group"]["rewards"], many["group"]["reference"], many["group"]["consistency"]):
            for key in table:
                if isinstance(table[key], list):
                    table[key] = table[key] * times
        many["group"]["advantages"] *= times
        many["group"]["completions"] = [dict(c, text=c["text"] + f" {i}") for i, c in enumerate(many["group"]["completions"] * times)]
        for key in ("lengths", "cuts", "ids", "chosen", "marks"):
            many[key] = many[key] * times
        many["row"].update(count=64, right=many["row"]["right"] * times)
        # no log-probabilities, reference, judge or frames
        bare = trained[6]
        for completion in bare["group"]["completions"]:
            del completion["logprobs"]
        del bare["group"]["reference"], bare["group"]["consistency"]
        bare["cuts"], bare["ids"] = [None] * 8, [[] for _ in range(8)]
        bare["why_no_cuts"] = "tokenizer.json of the run's model cannot be read here."
        bare["group"]["rewards"]["bonus"] = [None] * 8
        bare["row"].update(likelihood=None, surprise=None, lowest=None, consistency=None, sample=None)
        del bare["group"]["sample_id"]
        trained[7]["media"] = [{"available": False, "why": "evicted"}]


def event(time, name, kind, text, step):
    return {"time": time, "name": name, "kind": kind, "text": text, "step": step}


@functools.lru_cache(None)
def made(*arguments, **options):
    """The fixture with these arguments, made once."""
    return Fixture(*arguments, **options)
