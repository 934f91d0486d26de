#!/usr/bin/env python3
"""load_adapter.py MODELS DIR...: each DIR, NAME-adapter, loads in PEFT on MODELS/NAME with every tensor in its place and no other,
and changes the logits; merged and unmerged they agree."""
import pathlib, sys, warnings
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

warnings.simplefilter("error")  # PEFT warns of a missing tensor
for directory in map(pathlib.Path, sys.argv[2:]):
    name = directory.name.removesuffix("-adapter")
    base = AutoModelForImageTextToText.from_pretrained(pathlib.Path(sys.argv[1]) / name, torch_dtype=torch.float32).eval()
    logits = lambda model: model(input_ids=torch.tensor([[2, 3, 4]])).logits
    with torch.no_grad():
        plain = logits(base)
        model = PeftModel.from_pretrained(base, directory)
        held, stored = get_peft_model_state_dict(model), load_file(directory / "adapter_model.safetensors")
        if held.keys() != stored.keys() or any(not torch.equal(held[k], stored[k]) for k in stored):
            raise SystemExit(f"{directory}: {sorted(held.keys() ^ stored.keys())}")
        unmerged = logits(model)
        merged = logits(model.merge_and_unload())
    if not (unmerged - plain).abs().max() > 1e-3 or not (merged - unmerged).abs().max() < 1e-4:
        raise SystemExit(f"{directory}: logits differ by {unmerged - plain}, merged by {merged - unmerged}")
    print(directory, "loads")
