#!/usr/bin/env python3
"""miniature_peer.py DATA MODEL STEPS released|fast: training steps on the miniature of SEED-Bench-R1 in PyTorch and transformers.

A step has 4 questions: each one's clip is decoded and resized, 8 completions are sampled, the reference scores them, the policy is scored with a gradient; then
AdamW and the reference's average. `released` does what costs time in the released code: activations are computed again in the backward pass, the policy is
scored before the reference, log-probabilities are taken a row at a time, and garbage is collected twice a question. `fast` leaves these out. Prints a line:
seconds a step, median after the first, and tokens a completion."""
import copy, gc, json, statistics, sys, time
import decord
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

DATA, DIR, STEPS, RELEASED = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "released"
GROUPS, SIZE, NEW, PIXELS, DECAY = 4, 8, 40, 3136, 0.995
torch.manual_seed(1)
torch.set_num_threads(2)
policy = Qwen2_5_VLForConditionalGeneration.from_pretrained(DIR, torch_dtype=torch.float32, attn_implementation="sdpa")
reference = copy.deepcopy(policy).eval()
tokenizer = AutoTokenizer.from_pretrained(DIR)
processor = Qwen2VLImageProcessor(min_pixels=PIXELS, max_pixels=PIXELS)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-4, betas=(0.9, 0.98), weight_decay=0.01)
end = tokenizer.convert_tokens_to_ids("<|im_end|>")
media_tokens = [policy.config.image_token_id, policy.config.video_token_id, policy.config.vision_start_token_id]  # of inputs only


def inputs(row):
    """The prompt of a question, once."""
    reader = decord.VideoReader(f"{DATA}/videos/miniature/{row['video_basename']}")
    n, fps = len(reader), reader.get_avg_fps()
    count = int(min(min(max(n / fps * 2, 4), 16), n) // 2 * 2)
    frames = reader.get_batch(torch.linspace(0, n - 1, count).round().long().tolist()).asnumpy()
    video = processor(images=None, videos=[list(frames)], return_tensors="pt")
    image = processor(images=[Image.open(f"{DATA}/images/miniature/{row['current_observation_basename']}").convert("RGB")], return_tensors="pt")
    pads = {"video": int(video["video_grid_thw"].prod()) // 4, "image": int(image["image_grid_thw"].prod()) // 4}
    media = "".join(f"<|vision_start|>{f'<|{kind}_pad|>' * pads[kind]}<|vision_end|>" for kind in pads)
    options = "".join(f"{letter}. {text}\n" for letter, text in zip("ABCD", [row["answer"]] + row["negative_answers"]))
    text = (f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{media}{row['question']}Options:\n{options}<|im_end|>\n"
            "<|im_start|>assistant\n")
    return dict(input_ids=tokenizer(text, return_tensors="pt").input_ids, pixel_values=image["pixel_values"], image_grid_thw=image["image_grid_thw"],
                pixel_values_videos=video["pixel_values_videos"], video_grid_thw=video["video_grid_thw"], second_per_grid_ts=torch.tensor([1.0]))


def repeated(prompt):
    return {key: value.repeat(SIZE, *[1] * (value.dim() - 1)) for key, value in prompt.items()}


def log_probabilities(model, prompt, completions, kept):
    ids = torch.cat([prompt["input_ids"], completions], 1)
    mask = torch.cat([torch.ones_like(prompt["input_ids"]), kept], 1)
    media = {key: value for key, value in prompt.items() if key != "input_ids"}
    logits = model(input_ids=ids, attention_mask=mask, **media).logits[:, prompt["input_ids"].shape[1] - 1:-1]
    if RELEASED:
        return torch.stack([row.log_softmax(-1).gather(1, tokens[:, None])[:, 0] for row, tokens in zip(logits, completions)])
    return torch.log_softmax(logits.float(), -1).gather(2, completions[:, :, None])[:, :, 0]


def step(rows):
    """Returns the tokens of the completions."""
    tokens = 0
    for row in rows:
        prompt = repeated(inputs(row))
        policy.eval()
        with torch.no_grad():
            sampled = policy.generate(**prompt, attention_mask=torch.ones_like(prompt["input_ids"]), do_sample=True, temperature=1.0, top_p=1.0, top_k=0,
                                      suppress_tokens=media_tokens, max_new_tokens=NEW, eos_token_id=end, pad_token_id=end, use_cache=True)
        completions = sampled[:, prompt["input_ids"].shape[1]:]
        ended = (completions == end).int()
        kept = (ended.cumsum(1) - ended == 0).long()
        tokens += int(kept.sum())
        policy.train()
        if RELEASED:
            policy.gradient_checkpointing_enable({"use_reentrant": False})
        logprobs = log_probabilities(policy, prompt, completions, kept)
        if RELEASED:
            policy.gradient_checkpointing_disable()
            gc.collect()
        with torch.no_grad():
            likely = (log_probabilities(reference, prompt, completions, kept) * kept).sum(1)
        if RELEASED:
            gc.collect()
        texts = tokenizer.batch_decode(completions)
        right = torch.tensor([float(text.split("<answer>")[-1].startswith("A")) for text in texts])
        rewards = right + right * 0.5 * (likely >= likely.mean()).float()
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        loss = -(torch.exp(logprobs - logprobs.detach()) * advantages[:, None] * kept).sum(1) / kept.sum(1)
        (loss.mean() / len(rows)).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    with torch.no_grad():
        for mean, value in zip(reference.parameters(), policy.parameters()):
            mean.mul_(DECAY).add_(value, alpha=1 - DECAY)
    return tokens


questions = [json.loads(line) for line in open(f"{DATA}/annotations/training_6k.jsonl")]
seconds, tokens = [], 0
for number in range(STEPS + 1):
    began = time.perf_counter()
    found = step([questions[(number * GROUPS + i) % len(questions)] for i in range(GROUPS)])
    if number:  # the first one warms up
        seconds.append(time.perf_counter() - began)
        tokens += found
print(f"peer-{sys.argv[4]} {statistics.median(seconds):.3f} s a step, {tokens / STEPS / GROUPS / SIZE:.1f} tokens a completion")
