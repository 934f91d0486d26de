#!/usr/bin/env python3
"""make_tokenizer_golden.py: trains small tokenizers with Hugging Face's library and writes them to tests/data/tokenizer/,
and the results of transformers on texts and messages to golden.json there, which tests/unit/tokenizer.c reads.

plain: tokenizer.json with merges as pairs. files: the same as vocab.json, merges.txt and tokenizer_config.json.
modernbert: GPT-2's pattern, special tokens around a text and a pair, truncation and padding that say nothing, spaces cleaned up.
odd: merges as strings, ids of added tokens between those of the vocabulary, every flag of added tokens, an unk_token."""
import json, pathlib, random, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer
import tokenizer_compare

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "tokenizer"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
            "<|image_pad|>", "<|video_pad|>"]
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# As published with Qwen2.5-VL.
TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TEXT = ("The clip shows a person who opens the drawer, takes a knife and cuts the bread. What happens next? <think>At first the shape is red, "
        "then it becomes blue.</think> <answer>C</answer> Options: A. one B. two C. three D. four don't I'll we've you're he's\n"
        "def main(argc, argv):\n    return argc  # 1234567890\n" "Zażółć gęślą jaźń; привет, мир! 你好，世界。 こんにちは 안녕하세요 नमस्ते مرحبا\n") * 8


def learn(size):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def config(t):
    return {"added_tokens_decoder": {str(i): {"content": a.content, "lstrip": a.lstrip, "normalized": a.normalized, "rstrip": a.rstrip,
                                              "single_word": a.single_word, "special": a.special} for i, a in sorted(t.get_added_tokens_decoder().items())},
            "additional_special_tokens": SPECIALS[1:], "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
            "clean_up_tokenization_spaces": False, "model_max_length": 131072, "tokenizer_class": "Qwen2Tokenizer", "chat_template": TEMPLATE}


def write(name, files):
    (OUT / name).mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (OUT / name / file).write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")


def make_plain():
    t = learn(420)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in ("<tool_call>", "</tool_call>")])
    data = json.loads(t.to_str())
    write("plain", {"tokenizer.json": data, "tokenizer_config.json": config(t), "config.json": {"model_type": "qwen2_5_vl", "vocab_size": 448}})
    merges = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in data["model"]["merges"])
    write("files", {"vocab.json": data["model"]["vocab"], "merges.txt": merges, "tokenizer_config.json": config(t),
                    "config.json": {"model_type": "qwen2_5_vl"}})


def make_odd():
    """A vocabulary that contains the special tokens, lacks two bytes, and has its ids in reverse order."""
    t = learn(380)
    data = json.loads(t.to_str())
    names = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    dropped = [names.index("z"), names.index("Ā")]  # a letter and the NUL byte have no token
    names = [n for i, n in enumerate(names) if i not in dropped and not (n.endswith("z") and len(n) > 1)]
    names = names[:100] + SPECIALS[::-1] + ["<unk>", "new york"] + names[100:]
    vocab = {n: len(names) - 1 - i for i, n in enumerate(names)}
    merges = [m for m in data["model"]["merges"] if all(x in vocab for x in (m[0], m[1], m[0] + m[1]))]
    data["model"].update(vocab=vocab, merges=[" ".join(m) for m in merges], unk_token="<unk>", fuse_unk=True, continuing_subword_prefix="",
                         end_of_word_suffix="")
    flag = lambda content, **flags: {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False, **flags}
    added = [flag(s, special=True) for s in SPECIALS] + [flag("new york", single_word=True), flag("<left>", lstrip=True), flag("<right>", rstrip=True),
             flag("<both>", lstrip=True, rstrip=True, special=True), flag("Å", normalized=True), flag("<|im_start", special=True), flag("wörd", single_word=True, normalized=True)]
    n = len(vocab)
    for a in added:
        a["id"] = vocab.get(a["content"], n)
        n += a["content"] not in vocab
    data["added_tokens"] = sorted(added, key=lambda a: a["id"])
    write("odd", {"tokenizer.json": data, "tokenizer_config.json": {k: v for k, v in config(Tokenizer.from_str(json.dumps(data))).items() if k != "unk_token"}})


def make_gpt2():
    """GPT-2's own pattern after other steps, add_prefix_space, ignore_merges, no normalizer."""
    t = learn(380)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    data = json.loads(t.to_str())
    data["normalizer"], data["post_processor"] = None, None
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"String": "~"}, "behavior": "Removed", "invert": False},
        {"type": "Split", "pattern": {"Regex": r"[^#]+|##"}, "behavior": "Removed", "invert": True},
        {"type": "Split", "pattern": {"Regex": r"\d{1,3}"}, "behavior": "Isolated", "invert": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = data["model"]["merges"][:60]
    write("gpt2", {"tokenizer.json": data})


def make_modernbert():
    """ModernBERT's settings: runs of spaces and names as added tokens that are not special, [MASK] with the white space before it."""
    t = Tokenizer(models.BPE())
    t.normalizer, t.pre_tokenizer, t.decoder = normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True)] + [AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False, lstrip=s == "[MASK]") for s in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")])
    t.add_tokens([AddedToken("[unused0]", normalized=True)])
    ids = [(s, t.token_to_id(s)) for s in ("[CLS]", "[SEP]")]
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids)
    t.enable_truncation(8)
    t.enable_padding(pad_id=t.token_to_id("[PAD]"), pad_token="[PAD]", length=16)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    more = {"clean_up_tokenization_spaces": True, "model_max_length": 8192, "tokenizer_class": "PreTrainedTokenizerFast"}
    write("modernbert", {"tokenizer.json": json.loads(t.to_str()), "config.json": {"model_type": "modernbert", "vocab_size": 448},
                         "tokenizer_config.json": {"added_tokens_decoder": config(t)["added_tokens_decoder"], **names, **more}})


MESSAGES = [
    [{"role": "user", "content": "What is this?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi <|im_end|> é"}]}, {"role": "assistant", "content": ""},
     {"role": "user", "content": []}],
    [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}, {"type": "image", "image": "b.png"}, {"type": "text", "text": "Options:\nA. one\n"},
                                  {"type": "image", "image": "c.png"}]}],
    [{"role": "user", "content": [{"type": "text", "text": "\n  first "}, {"type": "video", "video": "x"}]}, {"role": "tool", "content": "{{ x }} {% y %}\n\n"}],
]


def pairs(rng, texts):
    answers = ["The final answer is C", "The final answer is [SEP]", " [MASK] ", "", "é e\u0301"]
    return [(rng.choice(texts), rng.choice(texts)) for _ in range(len(texts) // 2)] + [(rng.choice(texts), a) for a in answers] + [("", "")]


def golden(name, rng, count):
    peer = AutoTokenizer.from_pretrained(OUT / name)
    words = list(peer.get_added_vocab()) + ["new york", "new  yorks", " Å", "A\u030a", "wörd wo\u0308rd wörds", "a~b~~", "x#y##z###", "12345", "  <left>  <right>  <both> \n", "zz\u0000z"]
    texts = [tokenizer_compare.random_text(rng, words) for _ in range(count)]
    texts += ["a [MASK] b\n\n[MASK][SEP] [CLS]x|||IP_ADDRESS|||", "He 's here . Is n't it ? we 're , 'm ' !"] if peer.cls_token else []
    texts += ["", " ", TEXT[:400], "'ſ don'T", "a\u0000b", "e\u0301", " " * 40 + "x", "x" * 100, "<|im_start|><|im_start", "ééé"]
    cases = []
    for text in texts:
        ids = peer(text)["input_ids"]
        cases.append({"text": text, "tokens": ids, "decoded": peer.decode(ids), "skipped": peer.decode(ids, skip_special_tokens=True)})
    for text, pair in pairs(rng, texts) if peer.cls_token else ():
        ids = peer([text], [pair])["input_ids"][0]  # as a batch: alone, an empty pair would be none
        cases.append({"text": text, "pair": pair, "tokens": ids, "decoded": peer.decode(ids), "skipped": peer.decode(ids, skip_special_tokens=True)})
    scattered = []
    for _ in range(count):
        ids = [rng.randrange(len(peer)) for _ in range(rng.choice([1, 2, 4, 12]))]
        scattered.append({"tokens": ids, "decoded": peer.decode(ids), "skipped": peer.decode(ids, skip_special_tokens=True)})
    return {"texts": cases, "scattered": scattered}


def main():
    make_plain(), make_odd(), make_gpt2(), make_modernbert()
    rng, out = random.Random(7), {}
    for name, count in (("plain", 200), ("files", 40), ("odd", 200), ("gpt2", 60)):
        out[name] = golden(name, rng, count)
    out["modernbert"] = golden("modernbert", random.Random(8), 48)
    peer = AutoTokenizer.from_pretrained(OUT / "plain")
    out["template"] = [{"messages": m, "rendered": peer.apply_chat_template(m, tokenize=False, add_generation_prompt=True),
                        "tokens": peer.apply_chat_template(m, add_generation_prompt=True)} for m in MESSAGES]
    (OUT / "golden.json").write_text(json.dumps(out, separators=(",", ":")))


sys.exit(main())
