#!/usr/bin/env python3
"""tensorboard_compare.py DIR: reads the event files in DIR with TensorBoard's own reader and compares them with
DIR/metrics.jsonl: every scalar at every step (the time is no scalar), and number and mean of the histograms. Exits 1 if they differ."""
import json, pathlib, sys
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

# A histogram, the metric that is the mean of its values, and the metric that is their number.
HISTOGRAMS = {"rewards": ("reward", None), "completion_lengths": ("completion_length", "completions")}

directory = pathlib.Path(sys.argv[1])
lines = {line["step"]: line for line in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())}
events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
events.Reload()
found = {tag: {e.step: make_ndarray(e.tensor_proto) for e in events.Tensors(tag)} for tag in events.Tags()["tensors"]}


def given(name):
    return {step: line[name] for step, line in lines.items() if line.get(name) is not None}


def same_histogram(buckets, mean, count):
    left, right, numbers = buckets.T
    middle = (numbers * (left + right) / 2).sum() / numbers.sum()
    return abs(middle - mean) <= (right - left).max() + 1e-6 and count in (None, numbers.sum())


wrong = []
for tag in set(found).union(HISTOGRAMS, *lines.values()) - {"step", "time"}:
    values, (mean, count) = found.get(tag, {}), HISTOGRAMS.get(tag, (tag, None))
    want = given(mean)
    if set(values) != set(want):
        wrong.append(tag)
    elif tag in HISTOGRAMS:
        wrong += [tag] * (not all(same_histogram(values[s], want[s], lines[s].get(count)) for s in want))
    else:
        wrong += [tag] * (not all(abs(values[s] - want[s]) <= 1e-6 * max(1, abs(want[s])) for s in want))
print(f"{directory}: {len(lines)} steps, {len(found)} tags:", f"different: {sorted(wrong)}" if wrong else "equal")
sys.exit(bool(wrong) or not lines)
