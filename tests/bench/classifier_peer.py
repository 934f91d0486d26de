#!/usr/bin/env python3
"""classifier_peer.py DIR float32|bfloat16: PyTorch and transformers on the work of classifier_bench.c.

Same weights, same sizes: 8 texts of 700 tokens, in one batch. Prints precision, seconds, tokens/s, peak memory, processor seconds."""
import resource, sys, time
import torch
from transformers import AutoModelForSequenceClassification

DIR, PRECISION = sys.argv[1:3]
TEXTS, TOKENS = 8, 700
torch.manual_seed(1)
torch.set_num_threads(2)
model = AutoModelForSequenceClassification.from_pretrained(DIR, torch_dtype=getattr(torch, PRECISION), attn_implementation="sdpa",
                                                           reference_compile=False).eval()
tokens = torch.randint(0, model.config.vocab_size, (TEXTS, TOKENS))
with torch.no_grad():
    for _ in range(2): # the first pass warms up
        began, worked = time.time(), time.process_time()
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.softmax(-1)
wall, processor = time.time() - began, time.process_time() - worked
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
print(f"{PRECISION} {wall:.2f} s {TEXTS * TOKENS / wall:.0f} tokens/s {memory:.2f} GB {processor:.2f} processor-s")
