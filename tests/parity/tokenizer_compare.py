#!/usr/bin/env python3
"""tokenizer_compare.py BIN MODEL [COUNT [SEED]]: compares `caravan tokenize` with Hugging Face's
tokenizer of the same directory on COUNT random texts, encoding and decoding. Prints how many agree; exits 1 if any does not.
TEXT files after SEED are compared too, and the speed of both is printed."""
import json, random, subprocess, sys, time, unicodedata
from transformers import AutoTokenizer


def caravan(binary, model, lines, *options):
    given = "".join(json.dumps(x) + "\n" for x in lines).encode()
    done = subprocess.run([f"{binary}/caravan", "tokenize", "--model", model, *options], input=given, capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode(errors="replace"))
    return [json.loads(x) for x in done.stdout.decode().split("\n") if x]


RANGES = [(0, 0x7F), (0x20, 0x7E), (0x80, 0x24F), (0x250, 0x36F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF),
          (0xE00, 0xFFF), (0x1100, 0x11FF), (0x1200, 0x1FFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2FFF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFFFF), (0x10000, 0x1FFFF),
          (0x20000, 0x2FFFF), (0xE0000, 0xE01EF), (0x10FF00, 0x10FFFF)]
SPACES = ["\t", "\n", "\v", "\f", "\r", " ", "\x1c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u200b", "\u2028", "\u202f", "\u3000",
          "\ufeff"]
SNIPS = ["'s", "'S", "'ſ", "'T", "'re", "'LL", "'Ve", "'m", "'D", "''", "don't", "I'LL", "  ", "\r\n", "\n\n", " \n ", "123", "1234567", "٣٤",
         "½", "é", "e\u0301", "Å", "\u1100\u1161\u11a8", "가\u11a8", "ﬁ", "İ", "ß", "👩‍👩‍👧", "🇩🇪", "<|", "|>", "<|im_", "<tool_call", "<answer>C</answer>",
         "<think>", "hello", " world", "Hello", "ΑΒΓ", "привет", "مرحبا", "नमस्ते", "你好", "こんにちは", "안녕", "𝒳", "\u0000", "K", "ſ"]


def random_text(rng, specials):
    parts = []
    low, high = rng.choice(RANGES)
    for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 60])):
        kind = rng.random()
        if kind < 0.15:
            low, high = rng.choice(RANGES)
        if kind < 0.45:
            c = rng.randint(low, high)
            parts.append(chr(c) if not 0xD800 <= c <= 0xDFFF else "?")
        elif kind < 0.55:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 2, 5]))
        elif kind < 0.62:
            parts.append(rng.choice(specials))
        elif kind < 0.7:
            parts.append(rng.choice("abcdefghij") * rng.choice([1, 2, 3, 30]))
        else:
            parts.append(rng.choice(SNIPS))
    return "".join(parts)


def report(what, rows):
    bad = [r for r in rows if r[1] != r[2]]
    print(f"{what}: {len(rows) - len(bad)} of {len(rows)} agree")
    for given, ours, theirs in bad[:5]:
        print("  ", ascii(given)[:300], "\n    caravan", str(ours)[:200], "\n    theirs ", str(theirs)[:200])
    return len(bad)


def main():
    binary, model = sys.argv[1:3]
    count, seed = int(sys.argv[3]) if len(sys.argv) > 3 else 5000, int(sys.argv[4]) if len(sys.argv) > 4 else 1
    peer, rng = AutoTokenizer.from_pretrained(model), random.Random(seed)
    specials, size = list(peer.get_added_vocab()), len(peer)
    texts = [random_text(rng, specials) for _ in range(count)]
    ours = [x["tokens"] for x in caravan(binary, model, [{"text": t} for t in texts])]
    bad = report("encode", list(zip(texts, ours, peer(texts)["input_ids"])))
    ids = [[rng.randrange(size) for _ in range(rng.choice([1, 2, 5, 40]))] for _ in range(count)]
    for options, skip in (((), False), (("--skip-special",), True)):
        ours = [x["text"] for x in caravan(binary, model, [{"tokens": t} for t in ids], "--decode", *options)]
        bad += report("decode" + (" without special tokens" if skip else ""),
                      list(zip(ids, ours, peer.batch_decode(ids, skip_special_tokens=skip))))
    for path in sys.argv[5:]:
        text = open(path, encoding="utf-8", errors="replace").read()
        lines = [text[i:i + 20000] for i in range(0, len(text), 20000)]
        start = time.time()
        theirs = [peer(x)["input_ids"] for x in lines]
        peer_seconds = time.time() - start
        caravan(binary, model, [{"text": "x"}])
        start = time.time()
        caravan(binary, model, [{"text": "x"}])
        empty = time.time() - start
        start = time.time()
        ours = [x["tokens"] for x in caravan(binary, model, [{"text": t} for t in lines])]
        seconds = time.time() - start - empty
        size = len(text.encode()) / 1e6
        bad += report(f"{path}: {size:.1f} MB, start {empty:.2f} s, caravan {size / seconds:.1f} MB/s with JSON, "
                      f"peer {size / peer_seconds:.1f} MB/s", list(zip(lines, ours, theirs)))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
