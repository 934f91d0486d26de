// Learns a small byte-level BPE vocabulary from text.
#ifndef TOOLS_DEMO_BPE_TRAIN_H
#define TOOLS_DEMO_BPE_TRAIN_H

#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/text/bpe.h"

enum { BPE_BYTE_TOKENS = 256 }; // a vocabulary starts with one token for each byte

// Learns up to `vocab_size` tokens (256 for the bytes, then merges) from UTF-8 text. Again and again merges the pair of
// adjacent tokens that is most frequent in the words of the text, which are the matches of `pattern` (of equally
// frequent ones that of the lower ids), as long as it occurs twice or more. Appends the merges to `merges` as lines
// "left right\n" in the order of their ranks. `v` must be empty. DATAERR when the text is not UTF-8.
status bpe_train(struct vocab *v, struct buf *merges, const char *pattern, const char *text, size_t size,
                 size_t vocab_size);

#endif
