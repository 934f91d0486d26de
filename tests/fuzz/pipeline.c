// Reads any bytes as a pipeline file. A file is either refused with diagnostics, or its pipeline must survive being
// written and read, and its settings, as the page shows them, must be JSON.
#include "tests/fuzz/fuzz.h"

#include "shared/base/json.h"
#include "shared/config/pipeline.h"
#include "tools/view/run_files.h"

static void write_and_read_again(const struct pipeline *first) {
    struct pipeline *second = NULL;
    struct buf text = {0}, again = {0}, diagnostics = {0};
    fuzz_must(pipeline_write(first, &text) == OK);
    fuzz_must(pipeline_parse(&second, "/p.yaml", false, text.data, text.size, NULL, 0, &diagnostics) == OK);
    fuzz_must(pipeline_write(second, &again) == OK && again.size == text.size);
    fuzz_must(memcmp(again.data, text.data, text.size) == 0);
    buf_clear(&again);
    pipeline_dot(first, &again);
    pipeline_text(first, &again);
    pipeline_free(&second);
    buf_release(&text);
    buf_release(&again);
    buf_release(&diagnostics);
}

static void print_settings(const struct pipeline *pipeline) {
    struct arena arena = {0};
    struct buf text = {0};
    struct json *settings;
    run_print_settings(pipeline, &text);
    fuzz_must(json_parse(&settings, &arena, text.data, text.size) == OK);
    fuzz_must(json_count(settings) == pipeline->stage_count);
    buf_release(&text);
    arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const sets[] = {"seed=1", "frames.fps=3"};
    struct pipeline *pipeline = NULL;
    struct buf diagnostics = {0};
    status result = pipeline_parse(&pipeline, "/p.yaml", false, (const char *)data, size, sets, size % 3, &diagnostics);
    if (result == OK) {
        write_and_read_again(pipeline);
        print_settings(pipeline);
    } else {
        fuzz_must(diagnostics.size > 0);
    }
    pipeline_free(&pipeline);
    buf_release(&diagnostics);
    return 0;
}
