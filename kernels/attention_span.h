// Which cache rows the query rows of an attention span see: what every backend reads from a span of ops.h.
#ifndef KERNELS_ATTENTION_SPAN_H
#define KERNELS_ATTENTION_SPAN_H

#include "kernels/ops.h"

// The first of its own cache rows that a query row sees, counted from kv_begin.
static inline int64_t attention_span_first(const struct attention_span *span, int64_t query) {
    return span->window > 0 && query > span->window ? query - span->window : 0;
}

// The end of the own cache rows that a query row sees, counted from kv_begin.
static inline int64_t attention_span_end(const struct attention_span *span, int64_t query) {
    int64_t end = span->visible + (span->causal ? query : 0);
    return span->window > 0 && end - query > span->window ? query + span->window + 1 : end;
}

// How many cache rows from kv_begin on the query rows of a span name.
static inline int64_t attention_span_kv_len(const struct attention_span *span) {
    return span->q_len > 0 ? attention_span_end(span, span->q_len - 1) : span->visible;
}

// Whether a span lies within `rows` query rows, names no negative range, and each of its query rows sees a cache row.
static inline bool attention_span_valid(const struct attention_span *span, int64_t rows) {
    if (span->q_begin < 0 || span->q_len < 0 || span->q_begin + span->q_len > rows) return false;
    if (span->prefix_begin < 0 || span->prefix_len < 0) return false;
    if (span->kv_begin < 0 || span->visible < 0 || span->prefix_len + span->visible < 1) return false;
    if (span->window == 0) return true;
    return span->window > 0 && !span->causal && span->prefix_len == 0 && span->q_len - span->visible <= span->window;
}

#endif
