#!/usr/bin/env python3
"""load_classifier.py DIR...: each directory that training saved loads in transformers as a classifier without a missing,
unexpected or mismatched tensor, has the labels, and computes finite logits."""
import sys
import torch
from transformers import AutoModelForSequenceClassification

for directory in sys.argv[1:]:
    model, info = AutoModelForSequenceClassification.from_pretrained(
        directory, torch_dtype="auto", output_loading_info=True, attn_implementation="eager", reference_compile=False)
    wrong = {k: v for k, v in info.items() if v}
    if wrong or type(model).__name__ != "ModernBertForSequenceClassification":
        raise SystemExit(f"{directory}: {type(model).__name__}, {wrong}")
    if model.config.id2label != {0: "inconsistent", 1: "consistent"}:
        raise SystemExit(f"{directory}: id2label is {model.config.id2label}")
    with torch.no_grad():
        logits = model.float()(input_ids=torch.tensor([[1, 4, 5, 2]]), attention_mask=torch.ones(1, 4, dtype=torch.long)).logits
    if not torch.isfinite(logits).all():
        raise SystemExit(f"{directory}: logits are not finite")
    print(directory, "loads")
