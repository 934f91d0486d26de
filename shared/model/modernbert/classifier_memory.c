// What a classifier that scores needs of its device's memory. The sizes come from the functions that stand beside what
// allocates them.
#include <assert.h>

#include "shared/model/memory_list.h"
#include "shared/model/modernbert/classifier_internal.h"
#include "shared/model/named_shapes.h"

static status classifier_memory_read(struct classifier_config *config, const char *model) {
    struct arena arena = {0};
    struct buf text = {0};
    const char *name;
    status result = named_shape_read(model, &text, &arena, &name);
    if (result == OK) result = classifier_config_parse(config, text.data ? text.data : "", text.size, name);
    buf_release(&text);
    arena_release(&arena);
    return result;
}

status classifier_memory_needs(const char *model, const char *precision, bool on_cpu, int64_t text_tokens,
                               int64_t tokens, struct memory_item *out, size_t *count) {
    struct classifier_config config;
    struct classifier_parameters *params;
    struct memory_list list = {out, count};
    enum { CPU_ROWS = 2048 }; // of an MLP that the CPU computes at a time
    const enum element type = memory_list_type(precision);
    *count = 0;
    assert(text_tokens > 0 && tokens >= text_tokens);
    TRY(classifier_memory_read(&config, model));
    if (!named_shape_exists(model)) TRY(classifier_config_check_labels(&config, model)); // a shape names no labels
    TRY(classifier_parameters_new(&params, &config, config.labels, PART_NONE));
    const struct transformer encoder = classifier_encoder(&config, params);
    int64_t rows = tokens < CLASSIFIER_PASS_ROWS ? tokens : CLASSIFIER_PASS_ROWS;
    if (rows < text_tokens) rows = text_tokens;
    const int64_t chunk = !on_cpu || rows < CPU_ROWS ? rows : CPU_ROWS;
    const int64_t texts = (rows + text_tokens - 1) / text_tokens;
    memory_list_add(&list, "weights", param_array_bytes(&params->table, params->table.range_count, type, type));
    memory_list_add(&list, "working memory", classifier_pass_bytes(&encoder, type, rows, texts, config.labels, chunk));
    memory_list_add(&list, "scratch for keys and values",
                    memory_list_cache_bytes(encoder.heads, on_cpu ? ELEMENT_F32 : type, rows));
    memory_list_add(&list, "rotary angles", 2 * rope_angles_bytes(config.head_dim / 2, text_tokens));
    classifier_parameters_free(&params);
    return OK;
}
