// Learns a small tokenizer from text and writes its files, which transformers loads: a Qwen2 tokenizer, or one with the
// settings of ModernBERT.
#pragma once

#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/text/bpe.h"

enum tokenizer_kind { TOKENIZER_QWEN, TOKENIZER_MODERNBERT };

// The added tokens of Qwen2.5-VL; [UNK], [CLS], [SEP], [PAD] and [MASK].
enum { QWEN_ADDED_TOKENS = 22, MODERNBERT_ADDED_TOKENS = 5 };

// Learns up to `vocab_size` tokens from the text and writes tokenizer.json, tokenizer_config.json and, of Qwen's kind,
// chat_template.json to a directory. The added tokens of the kind follow the learned ones. DATAERR when the text is not
// UTF-8, UNAVAILABLE when a file cannot be written.
status tokenizer_train(const char *dir, enum tokenizer_kind kind, const char *text, size_t size, size_t vocab_size);

// Writes chat_template.json, the chat template of Qwen2.5-VL in the form that transformers reads, to a directory.
status tokenizer_save_chat_template(const char *dir);

enum { BPE_BYTE_TOKENS = 256 }; // a vocabulary starts with one token for each byte

// Learns up to `vocab_size` tokens (256 for the bytes, then merges) from UTF-8 text. Again and again merges the pair of
// adjacent tokens that is most frequent in the words of the text, which are the matches of `pattern` (of equally
// frequent ones that of the lower ids), as long as it occurs twice or more. Appends the merges to `merges` as lines
// "left right\n" in the order of their ranks. `v` must be empty. DATAERR when the text is not UTF-8.
status bpe_train(struct vocab *v, struct buf *merges, const char *pattern, const char *text, size_t size,
                 size_t vocab_size);
