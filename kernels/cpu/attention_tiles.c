// The inner loops of attention (attention_tiles.inc) in plain C.
#define SIMD_ATTENTION_TILES simd_attention_tiles
#include "kernels/cpu/attention_tiles.inc"
