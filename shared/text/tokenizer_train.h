// Learns a small tokenizer from text and writes its files, which transformers loads as a Qwen2 tokenizer.
#ifndef SHARED_TEXT_TOKENIZER_TRAIN_H
#define SHARED_TEXT_TOKENIZER_TRAIN_H

#include <stddef.h>

#include "shared/base/status.h"

enum { QWEN_ADDED_TOKENS = 22 }; // the added tokens of Qwen2.5-VL

// Learns up to `vocab_size` tokens from the text and writes tokenizer.json, tokenizer_config.json and
// chat_template.json to a directory. The added tokens follow the learned ones. DATAERR when the text is not UTF-8,
// UNAVAILABLE when a file cannot be written.
status tokenizer_train(const char *dir, const char *text, size_t size, size_t vocab_size);

// Writes chat_template.json, the chat template of Qwen2.5-VL in the form that transformers reads, to a directory.
status tokenizer_save_chat_template(const char *dir);

#endif
