#!/usr/bin/env python3
"""peer.py BENCH_JSON: times PyTorch on the items that bench has measured, on the same GPU: its products, for which cuBLAS
chooses freely, its causal attention, and its fused AdamW. Prints a line of JSON for each."""
import itertools, json, sys

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.is_available():
    print(json.dumps({"peer": "none: there is no Python with torch that sees a GPU"}))
    sys.exit(0)


def microseconds(call, calls=10, batches=5):
    """Of one call: the best batch, as in bench."""
    call()
    times = []
    for _ in range(batches):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return min(times)


def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def product(item):
    """The weights of decoding are used in turn, as in bench."""
    m, k = item["rows"], item["columns"]
    a = random(m, k)
    weights = [random(round(item["flops"] / (2 * m * k)), k) for _ in range(4 if "decoding" in item["item"] else 1)]
    turn = itertools.cycle(weights)
    return lambda: torch.nn.functional.linear(a, next(turn))


def attention(item):
    """Causal over as many tokens as the packed group has: more work than the group, whose branches do not see each other."""
    q, k, v = random(1, 28, item["rows"], 128), random(1, 28, item["rows"], 128), random(1, 28, item["rows"], 128)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def adamw(item):
    parameter = torch.nn.Parameter(random(item["columns"]))
    parameter.grad = random(item["columns"])
    return torch.optim.AdamW([parameter], fused=True).step


PEERS = {"linear": product, "attention": attention, "adamw": adamw}
LEFT_OUT = {"attention of windows", "attention, decoding", "adamw of float32"}

print(json.dumps({"peer": f"torch {torch.__version__}", "device": torch.cuda.get_device_name(),
                  "cublas": torch.version.cuda}))
for line in open(sys.argv[1]):
    item = json.loads(line)
    if item.get("operation") not in PEERS or item["item"] in LEFT_OUT:
        continue
    us = microseconds(PEERS[item["operation"]](item))
    print(json.dumps({"peer": item["item"], "us": round(us, 2), "caravan_us": item["us"],
                      "times_as_fast": round(us / item["us"], 3)}), flush=True)
    torch.cuda.empty_cache()
