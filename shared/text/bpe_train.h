// Learning a small byte-level vocabulary from a text (byte pair encoding), and writing it as the tokenizer files of a
// model folder, which transformers loads as a Qwen2 tokenizer.
#ifndef SHARED_TEXT_BPE_TRAIN_H
#define SHARED_TEXT_BPE_TRAIN_H

#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/text/vocab.h"

enum { BPE_BYTE_TOKENS = 256, QWEN_ADDED_TOKENS = 22 }; // tokens for the bytes, and those that Qwen2.5-VL adds

// Learns up to `limit` tokens (the bytes' 256 and merges) from UTF-8 text: of all pairs of tokens that stand side by
// side in its words the most frequent is joined, the one with the lower ids among equals, as long as it stands there
// twice or more. The merges are appended to `merges`, as rows "left right\n" in the order of their ranks.
// `v` must be empty. DATAERR when the text is not UTF-8.
status bpe_train(struct vocab *v, struct buf *merges, const char *text, size_t size, size_t limit);

// Learns from the text and writes tokenizer.json, tokenizer_config.json and chat_template.json to a folder; the added
// tokens follow the `limit` ones that are learned at most.
status tokenizer_train(const char *folder, const char *text, size_t size, size_t limit);

// Writes chat_template.json, Qwen2.5-VL's chat template as transformers reads it, to a folder.
status chat_template_save(const char *folder);

#endif
