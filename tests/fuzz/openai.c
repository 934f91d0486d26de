// Reads any body as a request of chat completions, and makes its prompt.
#include "tests/fuzz/fuzz.h"

#include "tools/serve/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct openai_limits limits = {.model = "m", .count = 4, .max_new_tokens = 16};
    struct openai_request request;
    struct openai_refusal refusal;
    struct chat_prompt prompt;
    struct arena arena = {0};
    struct buf text = {0}, error = {0}, bytes = {0};
    buf_append(&text, data, size);
    chat_prompt_init(&prompt);
    status result = openai_parse(&request, &arena, (struct string){text.data, text.size}, &limits, &refusal);
    if (result == OK) {
        fuzz_must(request.count >= 1 && request.count <= 4 && request.top_p > 0 && request.top_p <= 1);
        fuzz_must(request.max_new_tokens >= 1 && request.max_new_tokens <= 16 && request.top_k >= 0);
        fuzz_must(request.temperature >= 0 && request.temperature <= 1000 && request.stop_count <= OPENAI_STOPS);
        for (size_t i = 0; i < request.stop_count; i++) fuzz_must(request.stops[i].size > 0);
        result = openai_fill_prompt(&request, &prompt, "root", &refusal);
    }
    fuzz_must(result == OK ? prompt.group->prompt.message_count > 0 : refusal.code >= 400);
    if (result != OK) {
        openai_print_error(&error, refusal.code, refusal.param, refusal.name, fail_text());
        fuzz_must(utf8_valid(error.data, error.size));
    }
    if (chat_decode_base64((struct string){text.data, text.size}, &bytes))
        fuzz_must(bytes.size && bytes.size <= size / 4 * 3);
    buf_release(&bytes);
    buf_release(&error);
    buf_release(&text);
    chat_prompt_release(&prompt);
    arena_release(&arena);
    return 0;
}
