#!/usr/bin/env python3
"""make_reward_golden.py [--cases N] [--seed N] [--program build/bin/caravan-reward] [OUT.json]

Expected rewards from Python: re, float, round, str and the package rouge_score; the group's formulas written out below.
Writes OUT, the golden file of tests/unit/reward.c. With --program runs the same cases through the program and compares.
"""
import argparse, json, math, pydoc_data.topics, random, re, struct, subprocess, sys
from collections import defaultdict
from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer

SCORER = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
WHITE = [chr(c) for c in range(0x3100) if chr(c).isspace()] + ["\u180e", "\u200b", "\ufeff", "\u2060"]
NUMBERS = ["0", "1", "5", "-3", "3.14", "2.675", "0.125", "0.375", "1.005", "1,234", "1,234.5", "1e3", "1E-3", "1e308", "9e307",
           "1e309", "-inf", "inf", "nan", "Infinity", "1_000", "1__0", "_1", "1_", "1_.5", "0x10", "٣٤", "１２", "𝟙𝟚", "١_٢", ".5", "5.",
           ".", "", "+7", "--7", "1 2", "1\u00002", "\x1c1", "\u20031", ",\x1c5", "1e", "50%", "²", "½", "1e-400", "0.004", "0.005",
           "0.015", "1000000.005", "12345678901234567890", "4.35", "2.5", "3.5", ",", "1,", "-0.001", "൧൨", "1e5_0", "0.1", "0.10", "100"]
WORDS = sorted(set(re.findall(r"[A-Za-z]{1,14}", " ".join(pydoc_data.topics.topics.values()))))
ENDINGS = """s es ies sses ss ed ied eed ing at bl iz y ational tional enci anci izer bli abli alli entli eli ousli ization ation ator
alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant
ement ment ent ion sion tion ou ism ate iti ous ive ize e ll l""".split()
IRREGULAR = "sky skies dying lying tying news innings inning outings outing cannings canning howe proceed exceed succeed".split()


def extract(s):
    found = re.search(r"<answer>\s*(.*?)\s*</answer>", s, re.DOTALL)
    return found.group(1).strip() if found else ""


def number(s):
    try:
        return float(s.replace(",", ""))
    except ValueError:
        return None


def word_errors(target, answer):
    a, b = target.split(), answer.split()
    cost = list(range(len(b) + 1))
    for i, x in enumerate(a):
        row = [i + 1]
        for j, y in enumerate(b):
            row.append(min(cost[j] + (x != y), cost[j + 1] + 1, row[j] + 1))
        cost = row
    return cost[-1] / max(1, len(a))


def accuracy(kind, solution, text):
    gt, out = extract(solution), extract(text)
    clamp = lambda x: max(0.0, min(1.0, x))
    if kind == "multiple choice":
        return float(out == gt)
    if kind == "numerical":
        if ("." in gt or "," in gt) != ("." in out or "," in out):
            return 0.0
        a, b = number(gt), number(out)
        return 0.0 if a is None or b is None or not math.isfinite(a) or not math.isfinite(b) else float(round(a, 2) == round(b, 2))
    if kind == "OCR":
        return clamp(1 - word_errors(gt, out))
    if kind == "free-form":
        scores = SCORER.score(gt, out)
        return clamp((scores["rouge1"].fmeasure + scores["rouge2"].fmeasure + scores["rougeL"].fmeasure) / 3)
    a, b = number(gt), number(out)
    if a is None or b is None or math.isnan(b):
        return 0.0
    return 1 - clamp((abs(b - a) + 1e-9) / (abs(a) + 1e-9))


def likelihood(group, options, i):
    r = group["reference"]
    if options["likelihood"] == "geometric":
        p = r["answer_logprob"][i]
        p = None if p is None else math.exp(p)
    elif "answer_probability" in r:
        p = r["answer_probability"][i]
    else:
        span = r["answer_span"][i]
        row = [math.exp(x) for x in r["logprobs"][i][slice(*span)]] if span else []
        p = None if span is None else sum(row) / len(row) if row else 1.0
    return p if p is None or options["upper_bound"] is None else min(p, options["upper_bound"])


def accurate(acc):
    mean = sum(acc) / len(acc)
    return [a > 0.1 + 1e-6 and a >= mean - 1e-6 for a in acc]


def bonus(group, options, acc):
    if options["method"] == "refgen":
        score = lambda text: accuracy(group["prompt"]["problem_type"], group["prompt"]["solution"], f"<answer>{text}</answer>")
        return [0.0 if text is None else options["coefficient"] * score(text) for text in group["reference"]["generated"]]
    p = [likelihood(group, options, i) for i in range(len(acc))]
    c = options["coefficient"]
    if options["method"] == "densecons":
        return [c * a * (q or 0.0) for a, q in zip(acc, p)]
    good = [a and q is not None for a, q in zip(accurate(acc), p)]
    if not any(good):
        return [0.0] * len(acc)
    mu = sum(q for q, g in zip(p, good) if g) / sum(good) - (options["margin"] or 0)
    return [c * a if g and q >= mu - 1e-6 else 0.0 for a, q, g in zip(acc, p, good)]


def expected(group, options):
    texts = [c["text"] for c in group["completions"]]
    acc = [accuracy(group["prompt"]["problem_type"], group["prompt"]["solution"], t) for t in texts]
    fmt = [float(bool(re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", t, re.DOTALL))) for t in texts]
    rewards = {"accuracy": acc, "format": fmt}
    if options["length_reward"]:
        low, high = options["length_reward"]
        many = sum(a > 0.1 for a in acc) > 1
        rewards["length"] = [0.2 if many and a > 0.1 and low <= len(c["tokens"]) <= high else 0.0 for a, c in zip(acc, group["completions"])]
    if options["method"] in ("care", "densecons", "refgen"):
        rewards["bonus"] = bonus(group, options, acc)
    total = [sum(x) for x in zip(*rewards.values())]
    if options["method"] != "cora":
        return {**rewards, "total": total}, normalised(total, 1e-4)
    consistency = group["consistency"]["probability"]
    summed = [a + options["coefficient"] * b for a, b in zip(total, consistency)]
    rewards.update(consistency=consistency, total=summed)
    if options["advantages"] == "summed":
        return rewards, normalised(summed, 1e-4)
    part = [options["consistency_on"] == "all" or a for a in accurate(acc)]
    some = iter(normalised([p for p, counts in zip(consistency, part) if counts], max(1e-4, options["consistency_floor"])))
    second = [next(some) if counts else 0.0 for counts in part]
    return rewards, [options["alpha"] * a + beta(group, options) * b for a, b in zip(normalised(total, 1e-4), second)]


def normalised(values, epsilon):
    if len(set(values)) <= 1:
        return [0.0] * len(values)
    mean = sum(values) / len(values)
    s = math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    return [(x - mean) / (s + epsilon) for x in values]


def beta(group, options):
    """Rises from 0 over the first beta_warmup of the steps, falls to 0 over the last beta_decay of them."""
    parts = options["beta_schedule"].split("-")
    if "requires" not in group or "steps" not in options or parts == ["constant"]:
        return options["beta"]
    done = min(1.0, group["requires"]["order"] // options["groups_per_step"] / options["steps"])
    rise = done / options["beta_warmup"] if "warmup" in parts and options["beta_warmup"] else 1.0
    fall = (1 - done) / options["beta_decay"] if "decay" in parts and options["beta_decay"] else 1.0
    return options["beta"] * max(0.0, min(1.0, rise, fall))


def white(r):
    return "".join(r.choice(WHITE) for _ in range(r.choice([0, 0, 0, 1, 2])))


def phrase(r):
    odd = ["\u212aelvin", "İstanbul", "naïve", "caf\u00e9s", "running", "yyyy", "42nd", "don't"]
    some = [r.choice(odd if r.random() < 0.1 else WORDS) for _ in range(r.choice([0, 1, 2, 4, 8]))]
    return "".join(w + (white(r) or " ") for w in some)


def answers(r, kind):
    if kind == "multiple choice":
        return [r.choice("ABCDabcd") for _ in range(2)] + ["", "A.", "丙"]
    if kind in ("numerical", "regression"):
        return [r.choice(NUMBERS) for _ in range(4)] + [repr(round(r.uniform(-10, 10), r.choice([1, 2, 3, 4]))), repr(r.uniform(-1, 1) * 10 ** r.randint(-12, 12))]
    base = phrase(r)
    words = base.split()
    r.shuffle(words)
    return [base, " ".join(words), " ".join(words[1:]) + " " + phrase(r), phrase(r), base.upper()]


def wrap(r, answer):
    return r.choice([
        f"<think>{phrase(r)}</think>{white(r)}<answer>{white(r)}{answer}{white(r)}</answer>",
        f"<think></think><answer>{answer}</answer>", f"<think>a</think>b<answer>{answer}</answer>",
        f"<think>a</think></think> <answer>{answer}</answer><answer>x</answer>", f" <think>a</think><answer>{answer}</answer>",
        f"<think>a</think><answer>{answer}</answer>\n", f"<answer>{answer}", answer, f"<answer><answer>{answer}</answer>",
        f"<think><answer>{answer}</answer></think>\x1c<answer>{answer}</answer>", f"</answer><answer>{answer}</answer>", "",
        f"<think>a</think>\u180e<answer>{answer}</answer>", "<think></think><answer></answer>", f"<think>a</answer></think><answer>{answer}</answer>",
    ])


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def make_group(r, index):
    kind = r.choice(["multiple choice", "numerical", "OCR", "free-form", "regression"])
    some = answers(r, kind)
    truth = r.choice(some)
    if kind == "regression" and number(truth) is not None and not math.isfinite(number(truth)):
        truth = "12.5"
    pool = [truth] + some[: r.choice([1, 3, 6])]
    count = r.choice([1, 2, 4, 8])
    completions = [{"tokens": list(range(r.choice([1, 3, 5, 8]))), "text": wrap(r, r.choice(pool)), "finish": "eos"} for _ in range(count)]
    if r.random() < 0.2:
        completions = [completions[0]] * count
    spans = [r.choice([None, [0, 1], [0, len(c["tokens"])], [1, 1]]) for c in completions]
    rows = [[float32(-abs(r.gauss(0, 1))) for _ in c["tokens"]] for c in completions]
    mean = lambda values: sum(values) / len(values) if values else None
    logprobs = [None if s is None else mean(row[slice(*s)]) or 0.0 for row, s in zip(rows, spans)]
    if r.random() < 0.3:
        logprobs = [p if p is None else r.choice([-0.5, -0.5000004, -0.500002, -0.01, -60.0]) for p in logprobs]
    reference = {"version": 0, "answer_span": spans, "answer_logprob": logprobs}
    if r.random() < 0.5:
        reference["logprobs"] = rows
    else:
        reference["answer_probability"] = [None if s is None else mean([math.exp(x) for x in row[slice(*s)]]) or 1.0 for row, s in zip(rows, spans)]
    solution = r.choice(["<answer>%s</answer>", "<answer> %s\n</answer>", "so <answer>%s</answer> it is"]) % truth
    return {"v": 1, "id": f"g{index}", "sample_id": f"s{index}", "prompt": {"messages": [{"role": "user", "content": "?"}], "problem_type": kind, "solution": solution},
            "completions": completions, "reference": reference}


def make_case(r, index):
    options = {"method": r.choice(["care", "care", "densecons", "grpo", "nokl"]), "coefficient": r.choice([0.5, 0.25]), "margin": r.choice([None, None, 0.01, 0.1]),
               "upper_bound": r.choice([0.95, 0.95, None, 0.5]), "likelihood": r.choice(["geometric", "arithmetic"]), "length_reward": r.choice([None, None, [2, 5]])}
    group = make_group(r, index)
    rewards, advantages = expected(group, options)
    return {"options": options, "group": group, "rewards": rewards, "advantages": advantages}


def make_method_case(r, index):
    """A case of the methods that make_case does not have."""
    options = {"method": r.choice(["kl-ema", "kl-ema-ha", "sepkl-ema-ha", "refgen", "refgen", "cora", "cora", "cora", "cora"]),
               "coefficient": r.choice([0.5, 0.5, -1.5]), "length_reward": r.choice([None, None, [2, 5]])}
    group = make_group(r, index)
    truth = extract(group["prompt"]["solution"])
    wrong = answers(r, group["prompt"]["problem_type"])
    group["reference"]["generated"] = [r.choice([None, "", truth, truth, f" {truth}\u3000", r.choice(wrong)]) for _ in group["completions"]]
    group["consistency"] = {"probability": [r.choice([0.0, 0.5, 0.5, 1.0, float32(r.random()), 0.7 + r.random() / 1e4]) for _ in group["completions"]], "model": "0"}
    if r.random() < 0.8:
        group["requires"] = {"policy": 0, "reference": 0, "exact": 1, "order": r.randrange(0, 90)}
    if options["method"] == "cora":
        options.update(alpha=r.choice([1, 1, 0, 0.3]), beta=r.choice([0.5, 0.5, 2, -1]), beta_warmup=r.choice([0.1, 0, 0.6, 1]), beta_decay=r.choice([0.3, 0, 0.7, 1]),
                       beta_schedule=r.choice(["constant", "warmup", "decay", "warmup-decay"]), consistency_floor=r.choice([0.01, 0.01, 0, 0.2]),
                       consistency_on=r.choice(["all", "correct"]), advantages=r.choice(["split"] * 5 + ["summed"]), groups_per_step=r.choice([1, 4]))
        if r.random() < 0.8:
            options["steps"] = r.choice([1, 20])
    rewards, advantages = expected(group, options)
    return {"options": options, "group": group, "rewards": rewards, "advantages": advantages}


def flags(o):
    word = {"length_reward": lambda x: f"{x[0]}..{x[1]}" if x else "off"}
    return [x for k, v in o.items() for x in ("--" + k.replace("_", "-"), word.get(k, lambda x: "none" if x is None else x)(v))]


def compare(program, cases):
    by_options, worst, wrong = defaultdict(list), 0.0, 0
    for case in cases:
        by_options[tuple(map(str, flags(case["options"])))].append(case)
    for options, some in by_options.items():
        done = subprocess.run([program, "--stdio", *options], input="".join(json.dumps(c["group"]) + "\n" for c in some).encode(), capture_output=True)
        lines = [json.loads(x) for x in done.stdout.decode().split("\n") if x]
        if done.returncode or len(lines) != len(some):
            sys.exit(f"exit {done.returncode}: {done.stderr.decode()}")
        for case, got in zip(some, lines):
            for name, want in [*case["rewards"].items(), ("advantages", case["advantages"])]:
                have = got["advantages"] if name == "advantages" else got["rewards"][name]
                gap = max(abs(a - b) for a, b in zip(have, want)) if len(have) == len(want) else math.inf
                worst = max(worst, gap)
                if not gap <= 1e-9:
                    wrong += 1
                    print(f"{name}: {have}, expected {want}\n  {options} {json.dumps(case['group'])}"[:1500])
            if set(got["rewards"]) != set(case["rewards"]):
                sys.exit(f"rewards {set(got['rewards'])}, expected {set(case['rewards'])}")
    print(f"{len(cases)} groups in {len(by_options)} settings, largest difference {worst:.3g}, {wrong} wrong")
    return wrong


def make_stems(r, count):
    words = set(IRREGULAR) | {w.lower() for w in r.sample(WORDS, min(len(WORDS), count // 2))}
    while len(words) < count:
        letters = "".join(r.choice("aeiouybcdlnrstwxyz") for _ in range(r.randint(1, 5)))
        words.add(letters + "".join(r.choice(ENDINGS) for _ in range(r.choice([1, 1, 2]))))
    stemmer = PorterStemmer()
    return [[w, stemmer.stem(w)] for w in sorted(words) if len(w) > 3]


def make_numbers(r, count):
    texts = list(NUMBERS)
    while len(texts) < count:
        texts.append("".join(r.choice("0123456789..__eE+-٣५ \u3000x,") for _ in range(r.randint(1, 8))))
    value = lambda x: None if x is None else repr(x)
    rounded = lambda x: None if x is None or not math.isfinite(x) else repr(round(x, 2))
    return [[t, value(number(t)), rounded(number(t))] for t in texts]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cases", type=int, default=60)
    p.add_argument("--words", type=int, default=500)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--program")
    p.add_argument("out", nargs="?")
    args = p.parse_args()
    r = random.Random(args.seed)
    cases = [make_case(r, i) for i in range(args.cases)]
    other = random.Random(args.seed + 1)
    cases += [make_method_case(other, i) for i in range(len(cases), 2 * len(cases))]
    if args.out:
        data = {"white": [c for c in range(sys.maxunicode + 1) if chr(c).isspace()],
                "stems": make_stems(r, args.words), "numbers": make_numbers(r, args.words), "groups": cases}
        with open(args.out, "w") as f:
            f.write("{" + ",\n".join(f"{json.dumps(k)}:[" + ",\n".join(json.dumps(x) for x in v) + "]" for k, v in data.items()) + "}\n")
    return bool(args.program and compare(args.program, cases))


if __name__ == "__main__":
    sys.exit(main())
