#!/usr/bin/env python3
"""peer.py DIR rollout-released|rollout|score|train|train-shipped float32|bfloat16: PyTorch and transformers on the work of model_bench.c.

Same weights, same sizes: a 16-frame clip of 252 x 392 and 168 tokens of text, 8 completions of 128 tokens. Prints a line in model_bench.c's form.
The peer has its fastest settings: no recomputed activations, the tower's attention by windows (but for train-shipped), and from model.sh an allocator that keeps
its pages."""
import resource, sys, time
import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as modeling

DIR, WORK, PRECISION = sys.argv[1:4]
FRAMES, HEIGHT, WIDTH, TEXT, GROUP, NEW = 16, 252, 392, 168, 8, 128
torch.manual_seed(1)
torch.set_num_threads(2)
model = Qwen2_5_VLForConditionalGeneration.from_pretrained(DIR, torch_dtype=getattr(torch, PRECISION), attn_implementation="sdpa")
config = model.config
grid = torch.tensor([[FRAMES // 2, HEIGHT // 14, WIDTH // 14]])
vision = int(grid.prod()) // 4
pixels = torch.rand(int(grid.prod()), 1176).to(model.dtype)
text = torch.randint(0, 256, (TEXT,))
prompt = torch.cat([text[: TEXT // 2 - 1], torch.tensor([config.vision_start_token_id]), torch.full((vision,), config.video_token_id),
                    torch.tensor([config.vision_end_token_id]), text[TEXT // 2:]])[None]
answers = torch.randint(0, 256, (GROUP, NEW))
seconds = torch.tensor([1.0])


def attend_by_window(self, hidden_states, cu_seqlens, position_embeddings=None, **_):
    """The tower's attention, a window (or a frame) at a time. As shipped it masks all patches against all others: several times slower, and eight copies of
    our clip want more memory than the machine has. So the peer is faster here than transformers alone."""
    count = hidden_states.shape[0]
    q, k, v = self.qkv(hidden_states).reshape(count, 3, self.num_heads, -1).unbind(1)
    q, k = modeling.apply_rotary_pos_emb_vision(q, k, *position_embeddings)
    lengths = cu_seqlens.diff().tolist()
    parts = [torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in three))[0].transpose(0, 1)
             for three in zip(q.split(lengths), k.split(lengths), v.split(lengths))]
    return self.proj(torch.cat(parts).reshape(count, -1))


if not WORK.endswith("-shipped"):
    modeling.Qwen2_5_VLVisionSdpaAttention.forward = attend_by_window


def media(count):
    return dict(pixel_values_videos=pixels.repeat(count, 1), video_grid_thw=grid.repeat(count, 1), second_per_grid_ts=seconds.repeat(count))


def sampling():
    return dict(do_sample=True, temperature=1.0, top_p=0.95, top_k=0, max_new_tokens=NEW, min_new_tokens=NEW, use_cache=True, pad_token_id=0)


def rollout_released():
    with torch.no_grad():
        model.generate(input_ids=prompt.repeat(GROUP, 1), attention_mask=torch.ones(GROUP, prompt.shape[1], dtype=torch.long), **media(GROUP), **sampling())


def rollout():
    """The prompt once, its cache repeated for the completions."""
    from transformers import DynamicCache
    with torch.no_grad():
        first = model(input_ids=prompt, attention_mask=torch.ones_like(prompt), use_cache=True, **media(1))
        cache = DynamicCache.from_legacy_cache(first.past_key_values.to_legacy_cache())
        cache.batch_repeat_interleave(GROUP)
        logits, delta = first.logits[:, -1].repeat(GROUP, 1), first.rope_deltas
        for t in range(NEW):
            probabilities = torch.softmax(logits.float(), -1)
            ordered, order = probabilities.sort(descending=True)
            ordered[ordered.cumsum(-1) - ordered > 0.95] = 0
            token = order.gather(1, torch.multinomial(ordered, 1))
            place = (torch.full((GROUP, 1), prompt.shape[1] + t) + delta)[None].expand(3, -1, -1)
            out = model.model(input_ids=token, position_ids=place, past_key_values=cache, use_cache=True,
                              attention_mask=None)
            logits = model.lm_head(out.last_hidden_state[:, -1])


def log_probabilities(i):
    ids = torch.cat([prompt, answers[i:i + 1]], 1)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **media(1)).logits[:, prompt.shape[1] - 1:-1]
    return torch.log_softmax(logits.float(), -1).gather(2, answers[i:i + 1, :, None])[0, :, 0]


def score():
    with torch.no_grad():
        for i in range(GROUP):
            log_probabilities(i)


optimizer = None


def train():
    global optimizer
    model.train()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    for i in range(GROUP):
        loss = -(log_probabilities(i).mean() * (1 if i % 2 else -1)) / GROUP
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


task = {"rollout-released": rollout_released, "rollout": rollout, "score": score, "train": train, "train-shipped": train}[WORK]


def warm_up():
    """One forward of every kind that the work makes, so that nothing is built or fetched for the first time under the clock."""
    with torch.no_grad():
        log_probabilities(0)


warm_up()
began = time.time()
task()
spent = time.time() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
print(f"{WORK} {PRECISION} {spent:.3f} s {GROUP * NEW / spent:.0f} tokens/s {memory:.2f} GB")
