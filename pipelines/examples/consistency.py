#!/usr/bin/env python3
"""consistency.py [--tail N]: a filter of groups, one JSON object a line, that adds the section `consistency`.

For each completion: 1 if the answer stands among the last N characters of its own reasoning, 0 if not. Any program that
keeps to three rules is a stage: answer each line with one line, in order; flush after each; let every key it does not
know pass through as it came. What it writes on standard error goes to the run's log.
"""
import argparse
import json
import re
import sys

options = argparse.ArgumentParser()
options.add_argument("--tail", type=int, default=200)
tail = options.parse_args().tail


def agrees(text):
    parts = re.search(r"<think>(.*?)</think>\s*<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)
    if not parts or not parts[2]:
        return 0.0
    return float(re.search(r"\b" + re.escape(parts[2]) + r"(?!\w)", parts[1][-tail:]) is not None)


for line in sys.stdin:
    if not line.strip():
        continue
    group = json.loads(line)
    if not group.get("quarantine"):
        group["consistency"] = {"probability": [agrees(c["text"]) for c in group["completions"]]}
    print(json.dumps(group, ensure_ascii=False), flush=True)
