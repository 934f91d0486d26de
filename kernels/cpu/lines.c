// Inner loops of norms, gates and rows of logits (lines.inc) in plain C.
#define SIMD_LINES simd_lines
#include "kernels/cpu/lines.inc"
