#!/usr/bin/env python3
"""make_loss_golden.py DIR: what Hugging Face and torch compute in float64 for optim's losses, with the model of DIR/even that
make_model_golden.py has made. Writes into DIR/even
  losses.json         three steps of two groups of two completions, and of each loss its options and values
  losses.safetensors  of each loss every gradient of step 1 and the updates of three steps (of matrices every 8th row)"""
import copy, json, pathlib, sys
import torch
from safetensors.torch import save_file
from transformers import Qwen2_5_VLForConditionalGeneration
from make_model_golden import CONFIGS, Case

EVERY, BETA, GROUPS = 8, 0.5, ((0, 1), (2, 3))
LOSSES = {
    "all-whole": dict(kl=BETA, accurate=False, separate=False, tokens=False),
    "accurate-whole": dict(kl=BETA, accurate=True, separate=False, tokens=False),
    "all-separate": dict(kl=BETA, accurate=False, separate=True, tokens=False),
    "accurate-separate": dict(kl=BETA, accurate=True, separate=True, tokens=False),
    "tokens": dict(kl=0.0, accurate=False, separate=False, tokens=True),
    "tokens-accurate": dict(kl=BETA, accurate=True, separate=False, tokens=True),
}
STEPS = [
    dict(advantages=[0.7, -0.7, 0.0, 1.1], accuracy=[1, 0.5, 0.05, 0.6], spans=[[1, 3], None, [4, 7], [10, 14]], stale=False),
    dict(advantages=[-0.3, 0.8, 0.0, 0.0], accuracy=[0.7, 0.7, 0, 0], spans=[[0, 2], None, [2, 9], [3, 5]], stale=False),
    dict(advantages=[0.9, 0.5, -1.2, -0.2], accuracy=[0, 1, 1, 1], spans=[None, [0, 1], [3, 3], [2, 17]], stale=True),
]
SETTINGS = dict(rate=3e-4, beta1=0.9, beta2=0.99, epsilon=1e-5, weight_decay=0.1, clip_norm=0.5, clip_low=0.1, clip_high=0.3)


def accurate(accuracy, group, i):
    return accuracy[i] > 0.1 + 1e-6 and accuracy[i] >= sum(accuracy[j] for j in group) / len(group) - 1e-6


# The parts over each of which a completion's KL term is a mean.
def kl_parts(loss, step, group, i, k3):
    if loss["accurate"] and not accurate(step["accuracy"], group, i):
        return []
    if not loss["separate"] or step["spans"][i] is None:
        return [k3]
    first, end = step["spans"][i]
    return [part for part in (k3[:first], k3[first:end]) if len(part)]


def loss_of(case, model, loss, step):
    terms, total = {}, sum(len(c) for c in case.completions)
    for group in GROUPS:
        for i in group:
            logp, _ = case.logprobs(model, case.completions[i])
            advantage = step["advantages"][i]
            policy = -torch.exp(logp - logp.detach()) * advantage
            if step["stale"]:
                ratio = torch.exp(logp - torch.tensor(step["behaviour"][i]))
                policy = -torch.min(ratio * advantage, ratio.clamp(1 - SETTINGS["clip_low"], 1 + SETTINGS["clip_high"]) * advantage)
            d = torch.clamp(torch.tensor(step["reference"][i]) - logp, -10, 10)
            parts = kl_parts(loss, step, group, i, d.exp() - d - 1)
            if loss["tokens"]:
                terms[i] = (policy.sum() + loss["kl"] * sum(p.sum() for p in parts)) / total
            else:
                terms[i] = (policy.mean() + loss["kl"] * sum(p.mean() for p in parts)) / len(group) / len(GROUPS)
    return sum(terms.values())


def train(case, model, loss, tensors, name):
    named = dict(model.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items()}
    decays = lambda n: not (n.endswith("bias") or "norm" in n or "ln_q" in n)
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named.items() if decays(n)], "weight_decay": SETTINGS["weight_decay"]},
        {"params": [p for n, p in named.items() if not decays(n)], "weight_decay": 0.0}],
        lr=SETTINGS["rate"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=SETTINGS["epsilon"])
    values = []
    for number, step in enumerate(STEPS):
        optimizer.zero_grad()
        value = loss_of(case, model, loss, step)
        value.backward()
        if number == 0:
            tensors.update({f"{name}.gradient.{n}": p.grad.clone() for n, p in named.items()})
        norm = torch.nn.utils.clip_grad_norm_(list(named.values()), SETTINGS["clip_norm"])
        values.append(dict(loss=float(value), norm=float(norm)))
        optimizer.step()
    tensors.update({f"{name}.update.{n}": p.detach() - before[n] for n, p in named.items()})
    return values


def main(directory):
    golden = json.loads((directory / "golden.json").read_text())
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory, attn_implementation="eager").double().eval()
    case = Case(CONFIGS[directory.name], model.config)
    case.prompt, case.completions = golden["prompt"], golden["completions"]
    case.inputs = {k: v.double() if v.is_floating_point() else v for k, v in case.inputs.items()}
    single = torch.float32
    torch.set_default_dtype(torch.float64)
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double  # norms, softmax and logits in float64 too
    noise = torch.Generator().manual_seed(300)
    with torch.no_grad():
        rows = [case.logprobs(model, c)[0] for c in case.completions]
    near = lambda row, scale: (row + scale * torch.randn(row.shape, generator=noise)).bfloat16().tolist()  # short in JSON
    for number, step in enumerate(STEPS):
        step["reference"] = [near(r, 3.0 if number == 2 else 0.7) for r in rows]
        step["behaviour"] = [near(r, 0.3) for r in rows] if step["stale"] else None
    tensors, losses = {}, []
    for name, loss in LOSSES.items():
        values = train(case, copy.deepcopy(model), loss, tensors, name)
        losses.append(dict(name=name, **loss, values=values))
        print(name, [(round(v["loss"], 5), round(v["norm"], 5)) for v in values])
    (directory / "losses.json").write_text(json.dumps(dict(settings=SETTINGS, every=EVERY, steps=STEPS, losses=losses)) + "\n")
    torch.float32 = single
    tensors = {k: t[::EVERY] if t.dim() > 1 else t for k, t in tensors.items()}
    save_file({k: t.detach().to(single).contiguous().clone() for k, t in tensors.items()}, directory / "losses.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(pathlib.Path(sys.argv[1]) / "even")
