// Inner loops of norms, gates and rows of logits (lines.inc) in plain C.
#define VECTORS_LINES vectors_lines
#include "kernels/cpu/lines.inc"
