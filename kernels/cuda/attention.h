// What the files of attention share: the KV cache in device memory, and the plan of a pass as kernels read it.
//
// A query row is one query head of one token. The rows of a span, for one key head, are its tokens and for each of them
// the H / K query heads that use the key head.
#pragma once

#include "kernels/cuda/cuda.h"

enum {
    TILE_ROWS = 64,   // query rows of a tile
    KEY_BLOCK = 64,   // keys that are scored at a time, counted from the first key of a prefix or of own rows
    CHUNK_KEYS = 512, // keys with a softmax of their own, counted likewise; chunks are merged in order
    PART_TILES = 64,  // tiles whose rows one block adds to the gradients of a block of keys
};

// Keys and values [layers][K][rows][D] in the type of qkv.
struct kv_cache {
    struct heads heads;
    enum element type;
    int layers;
    int64_t rows;
    struct buffer *keys, *values;
};

// Consecutive rows of one span. Row i of the tile is row first + i of the span.
struct attention_tile {
    int32_t q_begin; // of the span
    int32_t first, rows;
    int32_t prefix_begin, prefix_len; // as those of the span; prefix_len and visible are 0 in an idle row of decoding
    int32_t kv_begin, visible, causal;
    int32_t window; // 0: none
};

// Consecutive cache rows. Their gradients are the sums of `parts` partial sums, in order.
struct grad_block {
    int32_t begin, rows;
    int32_t first_part, parts;
};

// Consecutive tiles that see cache rows of a block, all of them in their prefix or all in their own rows.
struct grad_part {
    int32_t begin, rows; // of the block
    int32_t first_tile, tiles;
    int32_t is_prefix;
};

// Cache rows to which all of some tokens attend: a prefix and up to TILE_ROWS rows of the tokens behind it, or the own
// cache rows of one token.
struct decode_region {
    int32_t kv_begin, kv_len;
    int32_t first_token, tokens; // among decode_work's order
    int32_t is_prefix;
    int32_t first_chunk; // the chunks of the regions before
};

// The sums of single chunks, [tiles][H][max_chunks][D + 2] in float32.
struct decode_sums {
    float *data;
    int32_t max_chunks; // that a token sees
};

// The work of attention for tokens of which each has a tile of its own. It is in device memory, because it changes
// there and because a recorded step keeps its address.
struct decode_work {
    struct decode_sums sums;
    int32_t regions, chunks;
    int32_t order[2 * MAX_DECODE_ROWS]; // indices of tiles: sorted by prefix, then once more as they stand
    struct decode_region region[2 * MAX_DECODE_ROWS];
};

struct attention_plan {
    struct heads heads;
    int64_t rows;              // of the query
    int64_t kv_end;            // the spans name cache rows below it; 0 if only the device knows them
    struct tensor cache_slots; // none: there is no gradient
    int tile_count, max_rows;  // max_rows: of a tile
    bool has_window;           // some span has one
    int block_count, part_count;
    struct buffer *memory; // what follows, on the device
    struct attention_tile *tiles;
    struct grad_block *blocks; // by their first cache row
    struct grad_part *parts;
    struct decode_work *decode; // NULL unless each tile is a whole token
    struct decode_sums sums;    // what `decode` has
    struct buffer *sums_memory;
};

#ifdef __cplusplus
extern "C" {
#endif

// Whether `layer` exists and the cache was made for these heads and this type.
bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads, enum element type);

// The address of a layer's keys or values, [K][rows][D].
void *kv_cache_layer(const struct kv_cache *cache, const struct buffer *of, int layer);

// *out = a plan of `rows` tokens, at most MAX_DECODE_ROWS, all idle. Its tiles are on the device: whoever decodes sets
// the prefix, kv_begin and visible of tile i for row i of qkv, and then calls attention_plan_divide. The caller frees
// it with attention_plan_free. UNAVAILABLE.
status attention_plan_for_decoding(struct cuda_backend *cuda, struct attention_plan **out, struct heads heads,
                                   int rows);

// Makes room in a plan with `decode` for tokens that see so many rows of a prefix and so many of their own. A recorded
// step then uses the larger memory too. Not while a graph is recorded. UNAVAILABLE.
status attention_plan_reserve(struct cuda_backend *cuda, struct attention_plan *plan, int64_t prefix_len,
                              int64_t kv_len);

// Divides the work of a plan with `decode` anew, from its tiles; may be recorded. A tile that sees more than there is
// room for is reported and becomes idle.
status attention_plan_divide(struct cuda_backend *cuda, const struct attention_plan *plan);

#ifdef __cplusplus
}
#endif
