// Attention of texts on the matrix unit.
#ifndef KERNELS_CPU_ATTENTION_AMX_H
#define KERNELS_CPU_ATTENTION_AMX_H

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cpu.h"

// `attention` of ops.h, for a plan of texts and scale > 0, where cpu->f32_parts. UNAVAILABLE when memory is short.
status attention_amx(struct cpu_backend *cpu, struct tensor out, struct tensor qkv, float scale,
                     const struct kv_cache *cache, int layer, const struct attention_plan *plan, struct tensor lse);

#endif
