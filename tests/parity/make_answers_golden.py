#!/usr/bin/env python3
"""make_answers_golden.py CARAVAN DIR [SEED]: a tiny model that was taught how to end an answer, and the greedy answers that Hugging Face
(transformers 4.51.3, float32) gives behind the last <answer> of completions: what refscore's `generate: answer` must write.

DIR gets a model directory and groups.jsonl, whose groups name what is expected of each completion. The prompt's first word says
which kind of answer the model was taught."""
import json, pathlib, subprocess, sys, tempfile
import torch
from safetensors.torch import save_file
from transformers import Qwen2_5_VLForConditionalGeneration, PreTrainedTokenizerFast

SHAPE = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_act": "silu", "hidden_size": 32,
    "initializer_range": 0.1, "intermediate_size": 64, "max_position_embeddings": 512, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, "tie_word_embeddings": True, "vocab_size": 352,
    "vision_config": {"depth": 1, "hidden_act": "silu", "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "in_chans": 3,
                      "out_hidden_size": 32, "patch_size": 4, "spatial_merge_size": 1, "spatial_patch_size": 4, "window_size": 8,
                      "fullatt_block_indexes": [0], "tokens_per_second": 2, "temporal_patch_size": 2}}
NEW_TOKENS = 32
# The prompt's first word, and what is taught behind <answer>. <E> is the end token, <S> another special one.
TAUGHT = {
    "closed": "C</answer><E>",
    "ended": "D<E>",
    "empty": "</answer><E>",
    "spaces": " \u00a0 12.5 \u3000\n</answer><E>",
    "long": "A B " * 12,
    "special": "B<S>C</answer><E>",
    "split": "D</<S>answer><E>",
    "twice": "A</answer></answer><E>",
}
# Completions, each with whether it has an end token. Three of the tags are fused: `>A` and `>The` are tokens.
COMPLETIONS = [
    ("<think>so</think><answer>A</answer>", True),
    ("<think>so</think><answer> B</answer>", True),
    ("no tag at all", True),
    ("<think>the old one</think><answer>A</answer> no <answer>The blue square</answer>", True),
    ("cut off at <answer>", False),
    ("cut off behind <answer>A", False),
    ("</answer>C<answer", False),
]
OPEN, CLOSE = b"<answer>", b"</answer>"


class Text:
    def __init__(self, directory):
        self.hf = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        named = json.loads((directory / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        self.special = {int(i) for i, token in named.items() if token["special"]}
        ids = {token["content"]: int(i) for i, token in named.items()}
        self.end, self.start = ids["<|im_end|>"], ids["<|im_start|>"]
        # The byte that each character of a byte-level token stands for.
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        self.byte = {chr(b): b for b in plain}
        self.byte.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})

    def encode(self, text):
        return self.hf.encode(text, add_special_tokens=False)

    def piece(self, token):
        name = self.hf.convert_ids_to_tokens(token)
        return b"" if token in self.special or name is None else bytes(self.byte[c] for c in name)

    def text(self, tokens):
        return b"".join(self.piece(t) for t in tokens)

    def taught(self, text):
        tokens = []
        for i, part in enumerate(text.replace("<E>", "<S>\0").split("<S>")):
            tokens += [self.end if part.startswith("\0") else self.start] if i else []
            tokens += self.encode(part.removeprefix("\0"))
        return tokens

    # The completion's own tokens up to the last that overlaps its last <answer>, whose part behind the tag is cut off.
    def prefix(self, tokens):
        end = self.text(tokens).rfind(OPEN) + len(OPEN)
        if end < len(OPEN):
            return None
        kept = next(k for k in range(len(tokens) + 1) if len(self.text(tokens[:k])) >= end)
        if len(self.text(tokens[:kept])) == end:
            return tokens[:kept]
        before = self.text(tokens[:kept - 1])
        return tokens[:kept - 1] + self.encode(self.text(tokens)[len(before):end].decode())


def prompt_of(text, word):
    return [text.start, *text.encode("user\n" + word), text.end, *text.encode("\n"), text.start, *text.encode("assistant\n")]


def completion_tokens(text, completion, ended):
    return text.encode(completion) + [text.end] * ended


# Teaches each kind behind every completion that has a tag.
def teach(model, text):
    sequences = []
    for word, answer in TAUGHT.items():
        for completion, ended in COMPLETIONS:
            prefix = text.prefix(completion_tokens(text, completion, ended))
            if prefix is not None:
                sequences.append((prompt_of(text, word) + prefix, text.taught(answer)))
    longest = max(len(a) + len(b) for a, b in sequences)
    ids = torch.full((len(sequences), longest), text.end)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, (before, after) in enumerate(sequences):
        count = len(before) + len(after)
        ids[row, :count] = torch.tensor(before + after)
        mask[row, :count] = 1
        labels[row, len(before):count] = torch.tensor(after)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    for step in range(150):
        model.rope_deltas = None
        loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", float(loss))


# The greedy answer; fails if rounding could change it.
def answer(model, text, prompt, prefix):
    ids = torch.tensor([prompt + prefix])
    model.rope_deltas = None
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
                         output_scores=True, return_dict_in_generate=True)
    read = b""
    for token, scores in zip(out.sequences[0, ids.shape[1]:].tolist(), out.scores):
        best = scores[0].topk(2).values
        assert best[0] - best[1] > 1e-2, "two tokens are all but equal"
        if token in model.generation_config.eos_token_id:
            break
        read += text.piece(token)
        if CLOSE in read:
            break
    return read.split(CLOSE)[0].decode(errors="replace").strip()


def main(caravan, directory, seed):
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([caravan, "make-demo-data", f"{work}/data", "--clips", "2", "--held-out", "1", "--examples", "64"], check=True)
        pathlib.Path(f"{work}/shape.json").write_text(json.dumps(SHAPE))
        subprocess.run([caravan, "init", directory, "--shape", f"{work}/shape.json", "--train-tokenizer", f"{work}/data/text.txt",
                        "--seed", str(seed), "--dtype", "bfloat16"], check=True)
    text = Text(directory)
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory, torch_dtype=torch.float32, attn_implementation="eager")
    fused = [t for t in range(SHAPE["vocab_size"]) if text.piece(t) in (b">A", b">The")]
    assert len(fused) == 2 and text.encode("<answer>A")[-1] in fused, "no token is fused with the tag"
    teach(model, text)
    tensors = {name: p.detach().bfloat16().contiguous() for name, p in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[name].float())
        groups = [group_of(model, text, word) for word in TAUGHT]
    (directory / "groups.jsonl").write_text("".join(json.dumps(g, ensure_ascii=False, separators=(",", ":")) + "\n" for g in groups))


def group_of(model, text, word):
    prompt, completions, expected = prompt_of(text, word), [], []
    for completion, ended in COMPLETIONS:
        tokens = completion_tokens(text, completion, ended)
        prefix = text.prefix(tokens)
        completions.append({"tokens": tokens, "text": completion, "finish": "eos" if ended else "length"})
        expected.append(None if prefix is None else answer(model, text, prompt, prefix))
    print(word, expected)
    return {"id": word, "prompt": {"messages": [], "problem_type": "free-form", "solution": "<answer>C</answer>"},
            "prompt_tokens": prompt, "completions": completions, "expected": expected}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], pathlib.Path(sys.argv[2]), 1 + int(sys.argv[3]) if len(sys.argv) > 3 else 1)
