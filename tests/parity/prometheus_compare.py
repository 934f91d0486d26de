#!/usr/bin/env python3
"""prometheus_compare.py FILE: reads a metrics file with Prometheus' own parsers, OpenMetrics' and that of the older text
format, and checks names, types, units, labels and values. Exit 1 with the reason."""
import sys

from prometheus_client import parser as text
from prometheus_client.openmetrics import parser as openmetrics

content = open(sys.argv[1], encoding="utf-8").read()
families = {family.name: family for family in openmetrics.text_string_to_metric_families(content)}
samples = {}
for family in families.values():
    assert family.name.startswith("caravan_") and family.documentation, family
    assert family.type in ("counter", "gauge"), family
    assert not family.unit or family.name.endswith("_" + family.unit), family
    assert family.unit or family.name.split("_")[-1] not in ("groups", "seconds", "tokens", "steps"), family
    for sample in family.samples:
        assert sample.name == family.name + ("_total" if family.type == "counter" else ""), sample
        assert sample.timestamp is None and sample.value >= 0, sample
        assert sample.labels["run"] == 'care "7B" in C:\\runs\nagain', sample.labels
        key = (sample.name[8:],) + tuple(v for k, v in sorted(sample.labels.items()) if k != "run")
        assert key not in samples, key
        samples[key] = sample.value

assert len(families) == 21, sorted(families)
assert len(samples) == 55, len(samples)
expected = {
    ("trained_steps",): 6, ("groups", "trained"): 24, ("groups", "unissued"): 369, ("reissued_groups_total",): 5,
    ("failed_checkpoints",): 2,
    ("step_reward",): 1.625, ("step_accuracy",): 0.5,
    ("replica_up", "gpu1", "2", "rollout"): 0, ("replica_up", "gpu0", "1", "rollout"): 1,
    ("replica_restarts_total", "gpu0", "1", "rollout"): 2, ("replica_done_groups_total", "gpu0", "1", "rollout"): 30,
    ("replica_dropped_groups_total", "gpu0", "1", "rollout"): 1, ("replica_tokens_total", "gpu0", "1", "rollout"): 3000,
    ("replica_busy_seconds_total", "gpu0", "1", "rollout"): 90, ("replica_uptime_seconds", "gpu0", "1", "source"): 91,
    ("replica_oldest_group_seconds", "gpu0", "1", "rollout"): 12.75,
}
for key, value in expected.items():
    assert samples.get(key) == value, (key, samples.get(key), value)

# The textfile collector of node_exporter reads the older format: the same samples, a counter's without their type.
older = {(s.name, tuple(sorted(s.labels.items()))): s.value
         for family in text.text_string_to_metric_families(content) for s in family.samples}
newer = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families.values() for s in family.samples}
assert older == newer
print(f"{len(families)} families, {len(samples)} samples")
