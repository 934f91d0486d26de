#!/usr/bin/env python3
"""my_reward.py: a filter of groups with a reward of one's own, in place of the stage `reward`.

optim trains on `advantages`, a number for each completion; `rewards.total` goes into metrics.jsonl. The
terms of CARE are not added: what this program writes is the whole reward.
"""
import json
import re
import statistics
import sys


def reward(text, solution):
    answer = re.search(r"<think>.+</think>\s*<answer>(.*)</answer>", text, re.DOTALL)
    return 0.0 if not answer else 1.0 + (f"<answer>{answer[1].strip()}</answer>" == solution)


for line in filter(str.strip, sys.stdin):
    group = json.loads(line)
    if not group.get("quarantine"):
        total = [reward(c["text"], group["prompt"]["solution"]) for c in group["completions"]]
        deviation = statistics.stdev(total) if len(total) > 1 else 0.0  # unbiased
        group["rewards"] = {"total": total}
        group["advantages"] = [(r - statistics.mean(total)) / (deviation + 1e-4) for r in total]
    print(json.dumps(group, ensure_ascii=False), flush=True)
