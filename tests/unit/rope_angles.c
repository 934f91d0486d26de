// The table of the rotary position embedding: Hugging Face's formula, and what growing must not change.
#include "tests/unit/model_case.h"

#include "shared/model/qwen_vl/model_internal.h"

enum { PAIRS = 8, FEW = 40, MANY = 5000 };

static const struct text_config text = {.head_dim = 2 * PAIRS, .rope_theta = 5e5f, .mrope_section = {2, 3, 3}};
static const struct vision_config vision = {.head_dim = 2 * PAIRS};

static struct backend *open_backend(void) {
    struct backend *backend;
    MUST(backend_open(&backend, &(struct backend_options){.device = "cpu", .threads = 1}));
    return backend;
}

// The cosines, then the sines, of the first FEW positions.
static void download_few(struct backend *backend, const struct rope_table *table, float out[2 * FEW * PAIRS]) {
    MUST(backend->ops->download(backend, out, ELEMENT_F32, tensor_rows(table->cos, 0, FEW)));
    MUST(backend->ops->download(backend, out + FEW * PAIRS, ELEMENT_F32, tensor_rows(table->sin, 0, FEW)));
}

// Hugging Face's inverse frequency of pair j, and the angle, in float32.
static float angle_of(double theta, int dim, int j, int64_t position) {
    float frequency = 1.0f / (float)pow(theta, (double)((float)(2 * j) / (float)dim));
    return (float)position * frequency;
}

static float upper_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

TEST(the_language_models_table_has_its_angles) {
    SCOPED(struct backend *, backend_close) backend = open_backend();
    for (int half = 0; half < 2; half++) {
        struct rope_angles angles;
        float got[2 * FEW * PAIRS];
        text_rope_init(&angles, &text, half ? ELEMENT_BF16 : ELEMENT_F32);
        MUST(rope_angles_reserve(&angles, backend, FEW));
        assert_memory_equal(angles.table.sections, text.mrope_section, sizeof text.mrope_section);
        download_few(backend, &angles.table, got);
        for (int i = 0; i < FEW * PAIRS; i++) {
            double angle = (double)angle_of(5e5, 2 * PAIRS, i % PAIRS, i / PAIRS);
            float c = (float)cos(angle), s = (float)sin(angle);
            assert_true(got[i] == (half ? upper_half(c) : c));
            assert_true(got[FEW * PAIRS + i] == (half ? upper_half(s) : s));
        }
        rope_angles_release(&angles, backend);
    }
}

// Row and column rotate half of the pairs each, with the same frequencies. Nothing is rounded.
TEST(the_towers_table_rotates_rows_and_columns) {
    SCOPED(struct backend *, backend_close) backend = open_backend();
    struct rope_angles angles;
    float got[2 * FEW * PAIRS];
    vision_rope_init(&angles, &vision);
    MUST(rope_angles_reserve(&angles, backend, FEW));
    assert_true(angles.table.sections[0] == PAIRS / 2 && angles.table.sections[1] == PAIRS / 2);
    download_few(backend, &angles.table, got);
    for (int i = 0; i < FEW * PAIRS; i++) {
        double angle = (double)angle_of(1e4, PAIRS, i % PAIRS % (PAIRS / 2), i / PAIRS);
        assert_true(got[i] == (float)cos(angle) && got[FEW * PAIRS + i] == (float)sin(angle));
    }
    rope_angles_release(&angles, backend);
}

TEST(growing_keeps_the_bits) {
    SCOPED(struct backend *, backend_close) backend = open_backend();
    for (int i = 0; i < 3; i++) {
        struct rope_angles angles;
        float before[2 * FEW * PAIRS], after[2 * FEW * PAIRS];
        if (i < 2) text_rope_init(&angles, &text, i ? ELEMENT_BF16 : ELEMENT_F32);
        if (i == 2) vision_rope_init(&angles, &vision);
        MUST(rope_angles_reserve(&angles, backend, FEW));
        int64_t rows = angles.table.cos.rows;
        assert_in_range(rows, FEW, MANY - 1);
        download_few(backend, &angles.table, before);
        MUST(rope_angles_reserve(&angles, backend, MANY));
        assert_true(angles.table.cos.rows >= MANY && angles.table.cos.rows % rows == 0);
        download_few(backend, &angles.table, after);
        assert_memory_equal(before, after, sizeof before);
        const struct buffer *kept = angles.values;
        MUST(rope_angles_reserve(&angles, backend, FEW));
        assert_ptr_equal(angles.values, kept);
        rope_angles_release(&angles, backend);
    }
}

static float score_long(struct model *model, const struct model_case *it, int64_t *tokens) {
    float logprob, *row = &logprob;
    for (int i = 0; i < MANY; i++) tokens[i] = it->completions[0].tokens[0];
    const struct model_prompt prompt = {tokens, MANY, NULL, 0};
    MUST(model_score(model, &prompt, &(struct model_completion){tokens, 1}, 1, NULL, &row));
    return logprob;
}

// A model scores the same before and after a prompt that made its table grow, and after one that began with it.
TEST(a_long_prompt_changes_no_other) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    static int64_t tokens[MANY];
    float before[COMPLETIONS][MAX_TOKENS], after[COMPLETIONS][MAX_TOKENS];
    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    case_score(&it, model, before);
    float grown = score_long(model, &it, tokens);
    case_score(&it, model, after);
    assert_memory_equal(before, after, sizeof before);
    model_free(&model);
    model = case_model(&it, &(struct model_options){.precision = "float32"});
    float first = score_long(model, &it, tokens);
    assert_memory_equal(&grown, &first, sizeof grown);
}

// The prompt has its positions in the first table, its completions go beyond it. Their scores have the same bits.
TEST(completions_beyond_the_first_table_keep_their_bits) {
    enum { PROMPT = 1022, NEW_TOKENS = 20, GROUP = 8 };
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    int64_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) tokens[i] = it.completions[0].tokens[0];
    SCOPED(struct generator *, generator_free) generator = NULL;
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = NEW_TOKENS}));
    const struct generate_request request = {.prompt = {tokens, PROMPT, NULL, 0},
                                             .count = GROUP,
                                             .temperature = 1,
                                             .top_p = 1,
                                             .max_new_tokens = NEW_TOKENS,
                                             .key = 3};
    MUST(generator_add(generator, &request));
    while (generator_busy(generator)) MUST(generator_step(generator));
    void *tag;
    int count = 0;
    size_t longest = 0;
    const struct generated *got = generator_pop(generator, &tag, &count);
    assert_int_equal(count, GROUP);
    for (int i = 0; i < count; i++) {
        float logprobs[NEW_TOKENS], *row = logprobs;
        const struct model_completion completion = {got[i].tokens, got[i].count};
        MUST(model_score(model, &request.prompt, &completion, 1, NULL, &row));
        assert_memory_equal(logprobs, got[i].logprobs, got[i].count * sizeof *logprobs);
        if (got[i].count > longest) longest = got[i].count;
    }
    assert_in_range(PROMPT + longest - 2, 1024, 2048); // the last position that was computed
}

// A request whose longest completion would go beyond the last position is refused when it is added.
TEST(a_request_beyond_the_last_position_is_refused) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    int64_t *tokens = arena_alloc(&it.arena, (MAX_POSITION + 1) * sizeof *tokens);
    for (int i = 0; i <= MAX_POSITION; i++) tokens[i] = it.completions[0].tokens[0];
    SCOPED(struct generator *, generator_free) generator = NULL;
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = 3}));
    struct generate_request request = {
        .prompt = {tokens, MAX_POSITION, NULL, 0}, .count = 1, .top_p = 1, .max_new_tokens = 3};
    assert_int_equal(generator_add(generator, &request), BAD_SAMPLE);
    assert_non_null(strstr(fail_text(), "position id 262145 is above 262144"));
}
