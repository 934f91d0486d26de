#!/usr/bin/env python3
"""train_compare.py BIN TEXT [LIMIT]: compares the vocabulary that `caravan init` learns from a text with that of
Hugging Face's trainer with the same settings. Exits 1 if they differ."""
import json, subprocess, sys, tempfile, time
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

binary, path = sys.argv[1:3]
limit = int(sys.argv[3]) if len(sys.argv) > 3 else 2048
with tempfile.TemporaryDirectory() as directory:
    start = time.time()
    subprocess.run([f"{binary}/caravan", "init", directory, "--shape", "tiny", "--vocab-size", str(limit), "--train-tokenizer", path], check=True)
    seconds = time.time() - start
    ours = json.load(open(directory + "/tokenizer.json"))
pattern = ours["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
peer = Tokenizer(models.BPE())
peer.normalizer = normalizers.NFC()
peer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
start = time.time()
peer.train_from_iterator([open(path, encoding="utf-8").read()], trainers.BpeTrainer(
    vocab_size=limit, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
theirs = json.loads(peer.to_str())
same = [ours["model"][k] == theirs["model"][k] for k in ("vocab", "merges")]
print(f"{path}: vocabulary {len(ours['model']['vocab'])} {'equal' if same[0] else 'differs'}, merges {len(ours['model']['merges'])} "
      f"{'equal' if same[1] else 'differ'}; caravan {seconds:.2f} s, peer {time.time() - start:.2f} s")
if not all(same):
    print([(a, b) for a, b in zip(ours["model"]["merges"], theirs["model"]["merges"]) if a != b][:5])
sys.exit(not all(same))
