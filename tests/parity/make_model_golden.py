#!/usr/bin/env python3
"""make_model_golden.py DIR [SEED] [NAME...]: tiny random Qwen2.5-VL and Qwen2-VL models and what Hugging Face (transformers 4.51.3, float32) computes.

For each configuration DIR/NAME/ gets a model directory and
  golden.json         prompt, media, completions, settings of three optimizer steps, greedy tokens
  golden.safetensors  log-probabilities, logits of the last prompt token, every gradient of step 1, the updates of three steps
Frames are not stored: pixel i of medium m is a hash of both, which the test computes again."""
import json, pathlib, sys
import numpy, torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers import Qwen2VLImageProcessor

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]

# text: hidden, heads, key heads, inner, layers, sections; vision: hidden, heads, inner, depth, full, patch, merge, window.
# A Qwen2-VL has no `tps`; its tower has mlp_ratio in place of inner, and None for full and window.
CONFIGS = {
    "even": dict(seed=1, vocab=96, text=(16, 2, 2, 40, 2, [1, 1, 2]), vision=(16, 2, 20, 3, [1], 14, 2, 112), tied=True,
                 eps=1e-6, theta=1e6, tps=2, dtype="float32", seconds=[1.0],
                 media=[("video", 4, 140, 84)], layout="flat"),
    "pairs": dict(seed=2, vocab=80, text=(48, 4, 2, 36, 3, [2, 1, 3]), vision=(24, 3, 28, 2, [0], 14, 2, 84), tied=False,
                  eps=1e-4, theta=2e5, tps=4, dtype="bfloat16", seconds=[0.73],
                  media=[("image", 1, 56, 112), ("video", 6, 56, 84), ("image", 1, 140, 28)], layout="flat"),
    "seven": dict(seed=3, vocab=72, text=(56, 7, 1, 24, 2, [2, 1, 1]), vision=(32, 2, 24, 4, [1, 3], 8, 2, 48), tied=True,
                  eps=1e-5, theta=1e4, tps=25, dtype="bfloat16", seconds=[1.0 / 3, 2.02],
                  media=[("video", 4, 64, 80), ("video", 8, 32, 48)], layout="nested"),
    "thirds": dict(seed=4, vocab=88, text=(64, 4, 1, 44, 2, [2, 3, 3]), vision=(20, 1, 16, 2, [], 6, 3, 54), tied=False,
                   eps=1e-6, theta=5e5, tps=2, dtype="float32", seconds=[],
                   media=[("image", 1, 126, 72), ("image", 1, 54, 54)], layout="shards"),
    # Heads of 128 and 64, for tensor cores, and greedy tokens that stand out in bfloat16 too. Of matrices in
    # golden.safetensors every 16th row is kept.
    "wide": dict(seed=5, vocab=56, text=(128, 1, 1, 24, 1, [16, 24, 24]), vision=(64, 1, 20, 2, [1], 4, 1, 16), tied=True,
                 eps=1e-6, theta=1e6, tps=2, dtype="bfloat16", seconds=[],
                 media=[("image", 1, 32, 36)], layout="flat", every=16, margin=0.3),
    "clip": dict(seed=6, vocab=76, text=(32, 4, 2, 28, 2, [1, 1, 2]), vision=(24, 3, 1.5, 2, None, 14, 2, None), tied=True,
                 eps=1e-6, theta=1e6, dtype="float32", seconds=[0.73, 3.0],
                 media=[("video", 6, 84, 56), ("image", 1, 56, 84), ("video", 3, 28, 56)], layout="flat"),
    "ratio": dict(seed=7, vocab=68, text=(24, 3, 1, 20, 2, [2, 1, 1]), vision=(16, 1, 3, 3, None, 6, 3, None), tied=False,
                  eps=1e-5, theta=2e5, dtype="bfloat16", seconds=[2.02],
                  media=[("image", 1, 36, 54), ("video", 4, 54, 36)], layout="nested"),
}


def is_qwen2(c):
    return "tps" not in c


def pixels(medium, shape):
    index = numpy.arange(int(numpy.prod(shape)), dtype=numpy.uint64)
    mixed = (index * 2654435761 + numpy.uint64(medium) * 40503 * 65537 + 12345) & 0xffffffff
    mixed = ((mixed ^ (mixed >> numpy.uint64(15))) * 2246822519) & 0xffffffff
    return (mixed >> numpy.uint64(24)).astype(numpy.uint8).reshape(shape)


def build(c):
    hidden, heads, keys, inner, layers, section = c["text"]
    vh, vheads, vinner, depth, full, patch, merge, window = c["vision"]
    v = c["vocab"]
    tower = dict(depth=depth, num_heads=vheads, in_chans=3, patch_size=patch, spatial_merge_size=merge, temporal_patch_size=2)
    if is_qwen2(c):
        tower.update(embed_dim=vh, mlp_ratio=vinner, hidden_size=hidden)
    else:
        tower.update(hidden_size=vh, intermediate_size=vinner, out_hidden_size=hidden, window_size=window,
                     fullatt_block_indexes=full, tokens_per_second=c["tps"])
    config = (Qwen2VLConfig if is_qwen2(c) else Qwen2_5_VLConfig)(
        vocab_size=v, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=keys, rms_norm_eps=c["eps"], rope_theta=c["theta"], tie_word_embeddings=c["tied"],
        rope_scaling={"type": "mrope", "mrope_section": section}, image_token_id=v - 1, video_token_id=v - 2,
        vision_start_token_id=v - 3, vision_end_token_id=v - 4, bos_token_id=0, eos_token_id=1, pad_token_id=0,
        vision_config=tower, attn_implementation="eager")
    torch.manual_seed(c["seed"])
    model = (Qwen2VLForConditionalGeneration if is_qwen2(c) else Qwen2_5_VLForConditionalGeneration)(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.copy_(0.2 * torch.randn_like(p))
            elif "norm" in name or "ln_q" in name:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1.5 / p[0].numel() ** 0.5 if p.dim() > 1 else 1))
            if c["dtype"] == "bfloat16":
                p.copy_(p.bfloat16().float())
    return config, model


def nested_name(name):
    if name.startswith("visual."):
        return "model." + name
    return "model.language_model." + name[6:] if name.startswith("model.") else name


def write_directory(directory, c, config, model):
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*"):
        old.unlink()
    dtype = torch.bfloat16 if c["dtype"] == "bfloat16" else torch.float32
    tensors = {k: p.detach().to(dtype).contiguous() for k, p in model.named_parameters()}
    known = json.loads(config.to_json_string(use_diff=False))
    text = dict(vocab_size=c["vocab"], hidden_size=c["text"][0], intermediate_size=c["text"][3],
                num_hidden_layers=c["text"][4], num_attention_heads=c["text"][1], num_key_value_heads=c["text"][2],
                rms_norm_eps=c["eps"], hidden_act="silu", use_sliding_window=False)
    vision = {k: known["vision_config"][k] for k in (
        "depth", "embed_dim", "mlp_ratio", "hidden_size", "intermediate_size", "num_heads", "in_chans", "out_hidden_size",
        "patch_size", "spatial_merge_size", "temporal_patch_size", "window_size", "fullatt_block_indexes",
        "tokens_per_second") if k in known["vision_config"]}
    if c.get("tps") == 4:
        del vision["tokens_per_second"]
    ids = {k: known[k] for k in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
                                 "eos_token_id", "bos_token_id")}
    out = {"architectures": config.architectures or [type(model).__name__], "model_type": config.model_type, **ids, "vision_config": vision}
    if c["layout"] == "nested":
        out.update(dtype=c["dtype"], text_config={**text, "tie_word_embeddings": c["tied"], "model_type": config.model_type + "_text",
                   "rope_parameters": {"rope_type": "default", "rope_theta": c["theta"], "mrope_section": c["text"][5]}})
        tensors = {nested_name(k): t for k, t in tensors.items()}
    else:
        out.update(text, torch_dtype=c["dtype"], tie_word_embeddings=c["tied"], rope_theta=c["theta"],
                   rope_scaling={"type": "mrope", "mrope_section": c["text"][5]})
    (directory / "config.json").write_text(json.dumps(out, indent=1) + "\n")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}) + "\n")
    (directory / "preprocessor_config.json").write_text(json.dumps({
        "image_mean": MEAN, "image_std": STD, "patch_size": c["vision"][5], "temporal_patch_size": 2, "merge_size": c["vision"][6]}) + "\n")
    if c["layout"] != "shards":
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return
    names, parts = sorted(tensors), {}
    for i, name in enumerate(names):
        parts.setdefault(f"model-{1 + 2 * i // len(names):05d}-of-00002.safetensors", {})[name] = tensors[name]
    for file, part in parts.items():
        save_file(part, directory / file, {"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(json.dumps({
        "metadata": {"total_size": sum(t.numel() * 4 for t in tensors.values())},
        "weight_map": {n: f for f, part in parts.items() for n in part}}) + "\n")


class Case:
    def __init__(self, c, config):
        self.c, self.config = c, config
        merge, patch = c["vision"][6], c["vision"][5]
        processor = Qwen2VLImageProcessor(do_resize=False, patch_size=patch, merge_size=merge, temporal_patch_size=2,
                                          image_mean=MEAN, image_std=STD)
        words = torch.Generator().manual_seed(100 + c["seed"])
        word = lambda n: torch.randint(2, c["vocab"] - 8, (n,), generator=words).tolist()
        self.prompt, self.media = word(3), []
        images, videos, seconds = [], [], iter(c["seconds"])
        for m, (kind, frames, height, width) in enumerate(c["media"]):
            raw = pixels(m, (frames, height, width, 3))
            if kind == "video":
                got = processor(images=None, videos=[[f for f in raw]], return_tensors="pt")
                grid, values = got["video_grid_thw"], got["pixel_values_videos"]
                videos.append((grid, values))
            else:
                got = processor(images=[raw[0]], return_tensors="pt")
                grid, values = got["image_grid_thw"], got["pixel_values"]
                images.append((grid, values))
            count = int(grid.prod()) // merge ** 2
            token = config.video_token_id if kind == "video" else config.image_token_id
            self.prompt += [config.vision_start_token_id] + [token] * count + [config.vision_end_token_id] + word(1 + m)
            self.media.append(dict(video=kind == "video", frames=frames, height=height, width=width,
                                   seconds_per_grid=next(seconds) if kind == "video" else 0))
        self.inputs = {}
        if images:
            self.inputs.update(image_grid_thw=torch.cat([g for g, _ in images]), pixel_values=torch.cat([v for _, v in images]))
        if videos:
            self.inputs.update(video_grid_thw=torch.cat([g for g, _ in videos]), pixel_values_videos=torch.cat([v for _, v in videos]))
            if not is_qwen2(c):
                self.inputs.update(second_per_grid_ts=torch.tensor(c["seconds"], dtype=torch.float32))
        self.completions = [word(n) for n in (5, 1, 9, 17)]

    def ids(self, completion):
        return torch.tensor([self.prompt + completion])

    def logprobs(self, model, completion):
        ids = self.ids(completion)
        model.rope_deltas = None
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **self.inputs).logits[0].float()
        rows = logits[len(self.prompt) - 1:-1]
        return rows.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0], logits


def loss_of(case, model, step):
    total = 0
    for i, completion in enumerate(case.completions):
        logp, _ = case.logprobs(model, completion)
        advantage = step["advantages"][i]
        if step["stale"]:
            ratio = torch.exp(logp - torch.tensor(step["behaviour"][i]))
            term = -torch.min(ratio * advantage, ratio.clamp(1 - step["clip_low"], 1 + step["clip_high"]) * advantage)
        else:
            term = -torch.exp(logp - logp.detach()) * advantage
        if step["kl"]:
            d = torch.clamp(torch.tensor(step["reference"][i]) - logp, -10, 10)
            term = term + step["kl"] * (d.exp() - d - 1)
        total = total + term.mean() / len(case.completions)
    return total


# The tokens and the smallest difference between the best two logits; None if that is not greater than `least`, or if all
# tokens are the same.
def greedy(case, model, count, least):
    tokens, margin = [], []
    for _ in range(count):
        with torch.no_grad():
            ids = case.ids(tokens)
            model.rope_deltas = None
            row = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **case.inputs).logits[0, -1]
        best = row.topk(2)
        margin.append(float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        if margin[-1] <= least:
            return None
        if tokens[-1] in (0, 1):
            break
        if tokens[-1] >= case.c["vocab"] - 4:  # a placeholder, of which transformers would ask where its image is
            return None
    return (tokens, min(margin)) if len(set(tokens)) > 1 else None


def make(directory, name, c):
    config, model = build(c)
    case = Case(c, config)
    found = greedy(case, model, 12, c.get("margin", 1e-3))
    if found is None:  # or two tokens all but equal, left to rounding
        return make(directory, name, {**c, "seed": c["seed"] + 1000})
    write_directory(directory, c, config, model)
    noise = torch.Generator().manual_seed(200 + c["seed"])
    near = lambda row, scale: (row + scale * torch.randn(row.shape, generator=noise)).tolist()
    with torch.no_grad():
        first = [case.logprobs(model, x) for x in case.completions]
    tensors = {"logits": first[0][1][len(case.prompt) - 1], **{f"logprobs.{i}": f[0] for i, f in enumerate(first)}}
    rows = [f[0] for f in first]
    steps = [
        dict(advantages=[1.2, -0.7, 0.4, -0.9], stale=False, kl=0.0, clip_low=0.2, clip_high=0.2),
        dict(advantages=[-0.3, 0.8, 1.1, -1.6], stale=False, kl=0.04, clip_low=0.2, clip_high=0.2, reference=[near(r, 0.5) for r in rows]),
        dict(advantages=[0.9, 0.5, -1.2, -0.2], stale=True, kl=0.1, clip_low=0.1, clip_high=0.3, reference=[near(r, 5.0) for r in rows],
             behaviour=[near(r, 0.3) for r in rows]),
    ]
    decays = lambda n: not (n.endswith("bias") or "norm" in n or "ln_q" in n)
    settings = dict(rate=3e-4, beta1=0.9, beta2=0.99, epsilon=1e-5, weight_decay=0.1, clip_norm=0.5)
    named = dict(model.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items()}
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named.items() if decays(n)], "weight_decay": settings["weight_decay"]},
        {"params": [p for n, p in named.items() if not decays(n)], "weight_decay": 0.0}],
        lr=settings["rate"], betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
    for number, step in enumerate(steps):
        optimizer.zero_grad()
        loss = loss_of(case, model, step)
        loss.backward()
        if number == 0:
            tensors.update({"gradient." + n: p.grad.clone() for n, p in named.items()})
        step["loss"] = float(loss)
        step["norm"] = float(torch.nn.utils.clip_grad_norm_(list(named.values()), settings["clip_norm"]))
        optimizer.step()
    tensors.update({"update." + n: p.detach() - before[n] for n, p in named.items()})
    every = c.get("every", 1)
    golden = dict(prompt=case.prompt, media=case.media, completions=case.completions, steps=steps, settings=settings,
                  greedy=found[0], margin=found[1], every=every,
                  blocks=c["text"][4] + c["vision"][3])
    (directory / "golden.json").write_text(json.dumps(golden) + "\n")
    tensors = {k: t[::every] if t.dim() > 1 else t for k, t in tensors.items()}
    save_file({k: t.detach().float().contiguous().clone() for k, t in tensors.items()}, directory / "golden.safetensors")
    print(name, sum(p.numel() for p in named.values()), "parameters,", len(case.prompt), "tokens, greedy", golden["greedy"],
          "norms", [round(s["norm"], 4) for s in steps])


if __name__ == "__main__":
    torch.set_num_threads(1)
    offset = 10 * int(sys.argv[2]) if len(sys.argv) > 2 else 0
    wanted = sys.argv[3:] or CONFIGS
    for name, c in CONFIGS.items():
        if name in wanted:
            make(pathlib.Path(sys.argv[1]) / name, name, {**c, "seed": c["seed"] + offset})
