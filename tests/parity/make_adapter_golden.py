#!/usr/bin/env python3
"""make_adapter_golden.py MODELS DIR: what PEFT computes in float32 with adapters on the models that make_model_golden.py has made.

For each model DIR/NAME/ gets a directory of adapters as PEFT writes it, whose B are not zero, and
  golden.json         losses and norms of the three steps of MODELS/NAME/golden.json
  golden.safetensors  log-probabilities, every gradient of step 1, the updates of three steps"""
import json, pathlib, sys
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLForConditionalGeneration
from make_model_golden import CONFIGS, Case, is_qwen2, loss_of

# The matrices of the language model; those of the tower have some of these names too.
TARGETS = r"model\.layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj"
RANKS = {"even": (3, 7.5), "pairs": (8, 16), "clip": (5, 2)}


def make(models, directory, name, rank, alpha):
    c, golden = CONFIGS[name], json.loads((models / name / "golden.json").read_text())
    kind = Qwen2VLForConditionalGeneration if is_qwen2(c) else Qwen2_5_VLForConditionalGeneration
    model = kind.from_pretrained(models / name, torch_dtype=torch.float32, attn_implementation="eager").eval()
    case = Case(c, model.config)
    case.prompt, case.completions = golden["prompt"], golden["completions"]
    torch.manual_seed(c["seed"])
    peft = get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=TARGETS, lora_dropout=0.0, bias="none"))
    named = {n.replace(".default.", "."): p for n, p in peft.named_parameters() if p.requires_grad}
    assert len(named) == 14 * c["text"][4] and all(".lora_" in n for n in named)
    with torch.no_grad():
        for n, p in named.items():
            if ".lora_B." in n:
                p.copy_(0.1 * torch.randn_like(p))
    directory.mkdir(parents=True, exist_ok=True)
    peft.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    config = json.loads((directory / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")

    settings, before = golden["settings"], {n: p.detach().clone() for n, p in named.items()}
    optimizer = torch.optim.AdamW(named.values(), lr=settings["rate"], betas=(settings["beta1"], settings["beta2"]),
                                  eps=settings["epsilon"], weight_decay=settings["weight_decay"])
    with torch.no_grad():
        tensors = {f"logprobs.{i}": case.logprobs(model, x)[0] for i, x in enumerate(case.completions)}
    steps = []
    for number, step in enumerate(golden["steps"]):
        optimizer.zero_grad()
        loss = loss_of(case, model, step)
        loss.backward()
        if number == 0:
            tensors.update({"gradient." + n: p.grad.clone() for n, p in named.items()})
        norm = torch.nn.utils.clip_grad_norm_(list(named.values()), settings["clip_norm"])
        steps.append(dict(loss=float(loss), norm=float(norm)))
        optimizer.step()
    tensors.update({"update." + n: p.detach() - before[n] for n, p in named.items()})
    save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "golden.safetensors")
    (directory / "golden.json").write_text(json.dumps(dict(steps=steps), indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, (rank, alpha) in RANKS.items():
        make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) / name, name, rank, alpha)
