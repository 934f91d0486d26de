#!/usr/bin/env python3
"""consistency.py [--tail N]: a filter of groups that adds the section `consistency`.

A group is a JSON object on one line. The section has a number for each completion: 1 if the last N
characters of its reasoning contain its answer, and 0 if they do not.

Any program that keeps to three rules can be a stage. It answers each line with one line, in the
order of its input. It flushes standard output after each line. It copies every key that it does not
know. What it writes to standard error goes to the run's log.
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
