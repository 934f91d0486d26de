#!/usr/bin/env python3
"""media_peer.py FILE HEIGHT WIDTH: decord and torchvision on a clip, as the published preprocessing uses them. Prints a line in media.c's form."""
import sys, time
import decord
import torch
from torchvision.transforms import InterpolationMode, functional

HEIGHT, WIDTH, ROUNDS = int(sys.argv[2]), int(sys.argv[3]), 5


def clip(path):
    reader = decord.VideoReader(path)
    n, fps = len(reader), reader.get_avg_fps()
    k = int(min(min(max(n / fps * 2, 4), 16), n) // 2 * 2)
    frames = torch.tensor(reader.get_batch(torch.linspace(0, n - 1, k).round().long().tolist()).asnumpy()).permute(0, 3, 1, 2)
    return functional.resize(frames, [HEIGHT, WIDTH], interpolation=InterpolationMode.BICUBIC, antialias=True)


best = float("inf")
for _ in range(ROUNDS):
    start = time.perf_counter()
    clip(sys.argv[1])
    best = min(best, time.perf_counter() - start)
print(f"peer {sys.argv[1]} cold {best * 1e3:.1f} ms")
