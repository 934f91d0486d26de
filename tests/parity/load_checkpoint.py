#!/usr/bin/env python3
"""load_checkpoint.py DIR...: each directory loads in transformers without a missing, unexpected or mismatched tensor, and
computes finite logits."""
import sys
import torch
from transformers import AutoModelForImageTextToText

for directory in sys.argv[1:]:
    model, info = AutoModelForImageTextToText.from_pretrained(directory, torch_dtype="auto", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    if set(wrong.get("missing_keys", [])) == {"lm_head.weight"} and model.config.tie_word_embeddings:
        del wrong["missing_keys"]
    if wrong:
        raise SystemExit(f"{directory}: {wrong}")
    with torch.no_grad():
        logits = model.float()(input_ids=torch.tensor([[2, 3, 4]])).logits
    if not torch.isfinite(logits).all():
        raise SystemExit(f"{directory}: logits are not finite")
    print(directory, "loads")
