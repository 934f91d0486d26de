#!/usr/bin/env python3
"""make_classifier_golden.py DIR [SEED]: tiny random ModernBERT classifiers and what Hugging Face (transformers 4.51.3, float32) computes.

For each configuration DIR/NAME/ gets a model directory and
  golden.json         texts; the probability of the label that says consistent; settings of three optimizer steps
  golden.safetensors  every gradient of step 1, the updates of three steps: of matrices every 4th row or so
Configurations without steps have other labels, which training does not keep."""
import json, pathlib, sys
import torch
from safetensors.torch import save_file
from transformers import ModernBertConfig, ModernBertForSequenceClassification

TRAINED = ["inconsistent", "consistent"]
# size: vocabulary, hidden, heads, inner, layers; every: global_attn_every_n_layers; kept: every n-th row of matrices in golden.safetensors
CONFIGS = {
    # The keys of published files; windows smaller than the texts.
    "mean": dict(seed=1, size=(40, 16, 2, 12, 3), every=3, local=8, theta=(160000, 10000), pooling="mean", biases=(), dtype="float32"),
    # All biases; a window larger than the texts; local_rope_theta null.
    "biases": dict(seed=2, size=(36, 24, 3, 10, 2), every=2, local=128, theta=(5000, None), pooling="cls", dtype="bfloat16",
                   biases=("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")),
    # layer_types and rope_parameters, names without "model.", a window of one token to each side.
    "newer": dict(seed=3, size=(32, 24, 2, 12, 3), every=2, local=3, theta=(20000, 700), pooling="mean", biases=("norm_bias",), dtype="bfloat16",
                  newer=True),
    # Heads of 64, for tensor cores.
    "wide": dict(seed=4, size=(24, 64, 1, 16, 1), every=3, local=16, kept=16, theta=(160000, 10000), pooling="cls", dtype="bfloat16",
                 biases=("attention_bias", "classifier_bias")),
    # A model for inference in natural language.
    "labels": dict(seed=5, size=(24, 8, 1, 6, 1), every=3, local=4, theta=(160000, 10000), pooling="mean", biases=("mlp_bias",), dtype="float16",
                   labels=["contradiction", "Entailment", "neutral"]),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build(c):
    vocabulary, hidden, heads, inner, layers = c["size"]
    labels = c.get("labels", TRAINED)
    config = ModernBertConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_attention_heads=heads, intermediate_size=inner, num_hidden_layers=layers,
        global_attn_every_n_layers=c["every"], local_attention=c["local"], global_rope_theta=c["theta"][0], local_rope_theta=c["theta"][1],
        classifier_pooling=c["pooling"], pad_token_id=3, bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2,
        id2label=dict(enumerate(labels)), label2id={l: i for i, l in enumerate(labels)}, reference_compile=False,
        attn_implementation="eager", **{b: True for b in c["biases"]})
    torch.manual_seed(c["seed"])
    model = ModernBertForSequenceClassification(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.copy_(0.2 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1 if "embeddings" in name else 1.3 / p[0].numel() ** 0.5))
            p.copy_(p.to(DTYPES[c["dtype"]]).float())
    return config, model


def write_directory(directory, c, config, model):
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*"):
        old.unlink()
    out = {"architectures": ["ModernBertForSequenceClassification"], "model_type": "modernbert"}
    for key in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "local_attention", "pad_token_id",
                "bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id", "classifier_pooling", "label2id", *c["biases"]):
        out[key] = getattr(config, key)
    out["id2label"] = {str(i): l for i, l in config.id2label.items()}
    if out["classifier_pooling"] == "cls":
        del out["classifier_pooling"]
    if c.get("newer"):
        types = ["full_attention" if i % c["every"] == 0 else "sliding_attention" for i in range(c["size"][4])]
        out.update(dtype=c["dtype"], global_attn_every_n_layers=3, layer_types=types, rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": c["theta"][0]},
            "sliding_attention": {"rope_type": "default", "rope_theta": c["theta"][1]}})
    else:
        out.update(torch_dtype=c["dtype"], global_attn_every_n_layers=c["every"], global_rope_theta=c["theta"][0], local_rope_theta=c["theta"][1])
    (directory / "config.json").write_text(json.dumps(out, indent=1) + "\n")
    name = lambda n: n.removeprefix("model.") if c.get("newer") else n
    save_file({name(n): p.detach().to(DTYPES[c["dtype"]]).contiguous() for n, p in model.named_parameters()}, directory / "model.safetensors",
              {"format": "pt"})


def logits_of(model, text):
    ids = torch.tensor([text])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]


def make(directory, c):
    config, model = build(c)
    write_directory(directory, c, config, model)
    words = torch.Generator().manual_seed(100 + c["seed"])
    # The third text has the padding token, whose embedding has no gradient.
    texts = [[1] + torch.randint(3 if i == 2 else 4, c["size"][0], (n,), generator=words).tolist() + [2] for i, n in enumerate((5, 1, 17, 28))]
    texts[2][4] = 3
    consistent = 1  # in all of them
    with torch.no_grad():
        probabilities = [float(logits_of(model, t).softmax(-1)[consistent]) for t in texts]
    steps = [] if "labels" in c else [dict(labels=[1, 0, 0, 1], lr=2e-4), dict(labels=[0, 0, 1, 1], lr=1e-3), dict(labels=[1, 1, 0, 0], lr=5e-4)]
    settings = dict(beta1=0.9, beta2=0.98, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0)
    named = dict(model.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items()}
    decays = lambda n: not (n.endswith("bias") or "norm" in n)
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named.items() if decays(n)], "weight_decay": settings["weight_decay"]},
        {"params": [p for n, p in named.items() if not decays(n)], "weight_decay": 0.0}],
        betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
    tensors = {}
    for number, step in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = step["lr"]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(torch.stack([logits_of(model, t) for t in texts]), torch.tensor(step["labels"]))
        loss.backward()
        if number == 0:
            tensors.update({"gradient." + n: p.grad.clone() for n, p in named.items()})
        step["loss"] = float(loss)
        step["norm"] = float(torch.nn.utils.clip_grad_norm_(list(named.values()), settings["clip_norm"]))
        optimizer.step()
    if steps:
        tensors.update({"update." + n: p.detach() - before[n] for n, p in named.items()})
        tensors = {k: t[::c.get("kept", 4)] if t.dim() > 1 else t for k, t in tensors.items()}
        save_file({k: t.detach().float().contiguous().clone() for k, t in tensors.items()}, directory / "golden.safetensors")
    golden = dict(texts=texts, probabilities=probabilities, steps=steps, settings=settings, every=c.get("kept", 4), layers=c["size"][4])
    (directory / "golden.json").write_text(json.dumps(golden) + "\n")
    print(directory.name, sum(p.numel() for p in named.values()), "parameters, probabilities", [round(p, 4) for p in probabilities],
          "norms", [round(s["norm"], 4) for s in steps])


if __name__ == "__main__":
    torch.set_num_threads(1)
    offset = 10 * int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for name, c in CONFIGS.items():
        make(pathlib.Path(sys.argv[1]) / name, {**c, "seed": c["seed"] + offset})
