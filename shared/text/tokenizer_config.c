// Reading vocab.json, merges.txt and tokenizer_config.json.
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/text/tokenizer_internal.h"

static status load_vocab_json(struct tokenizer *t, const char *path) {
    struct json_object *vocab;
    TRY(json_file(&vocab, path));
    status result = OK;
    json_object_object_foreach(vocab, name, id) {
        if (result != OK) break;
        result = json_object_is_type(id, json_type_int)
                     ? vocab_add(&t->vocab, name, strlen(name), json_object_get_int64(id))
                     : fail(DATAERR, "the id of \"%s\" is no whole number", name);
    }
    json_object_put(vocab);
    t->model_count = t->vocab.count;
    if (result == OK && !t->model_count) result = fail(DATAERR, "no token in it");
    return result == OK ? OK : fail_prefix(result, "%s", path);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

// The next word of line[*at..size); its size is 0 at the end.
static const char *next_word(const char *line, size_t size, size_t *at, size_t *word_size) {
    while (*at < size && is_blank(line[*at])) ++*at;
    const char *word = line + *at;
    size_t start = *at;
    while (*at < size && !is_blank(line[*at])) ++*at;
    *word_size = *at - start;
    return word;
}

// One line of merges.txt; the first may be a header, which begins with # and is no merge of the vocabulary.
static status load_merge_line(struct tokenizer *t, const char *line, size_t size, size_t number, uint32_t *rank) {
    size_t at = 0, left_size, right_size, more;
    const char *left = next_word(line, size, &at, &left_size);
    const char *right = next_word(line, size, &at, &right_size);
    next_word(line, size, &at, &more);
    if (!left_size) return OK;
    bool headed = number == 1 && left[0] == '#';
    if (headed && (left_size >= 8 && !memcmp(left, "#version", 8))) return OK;
    status result = right_size && !more ? vocab_add_merge(&t->vocab, left, left_size, right, right_size, *rank, false)
                                        : fail(DATAERR, "\"%.*s\" is not two tokens", (int)size, line);
    if (headed && result == DATAERR) return OK;
    if (result != OK) return fail_prefix(result, "line %zu", number);
    ++*rank;
    return OK;
}

static status load_merges_txt(struct tokenizer *t, const char *path) {
    struct buf content = {0};
    status result;
    TRY_TO(result, done, file_read(path, &content));
    uint32_t rank = 0;
    size_t number = 1;
    for (size_t at = 0; at < content.size && result == OK; number++) {
        const char *line = content.data + at, *end = memchr(line, '\n', content.size - at);
        size_t size = end ? (size_t)(end - line) : content.size - at;
        result = load_merge_line(t, line, size, number, &rank);
        at += size + 1;
    }
    if (result != OK) fail_prefix(result, "%s", path);
done:
    buf_release(&content);
    return result;
}

status load_vocab_files(struct tokenizer *t, const char *folder) {
    struct arena memory = {0};
    char *vocab = path_join(&memory, folder, "vocab.json"), *merges = path_join(&memory, folder, "merges.txt");
    status result = vocab && merges ? load_vocab_json(t, vocab) : fail_oom();
    if (result == OK) result = load_merges_txt(t, merges);
    arena_release(&memory);
    TRY(result);
    TRY(bpe_init(&t->bpe, &t->vocab));
    t->form = NORMALIZE_NFC;
    TRY(pre_tokenizer_add_split(&t->pre_tokenizer, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2), SPLIT_ISOLATED));
    return pre_tokenizer_add_byte_level(&t->pre_tokenizer, false, false);
}

// A named special token: a text, or an added token as an object.
static status load_named(struct tokenizer *t, struct json_object *value) {
    const char *content;
    size_t size;
    struct added_token_flags flags = {.special = true};
    if (!value) return OK;
    if (json_object_is_type(value, json_type_string)) {
        content = json_object_get_string(value);
        size = (size_t)json_object_get_string_len(value);
    } else {
        TRY(added_token_parse(value, &content, &size, &flags));
        flags.special = true;
    }
    const struct added_token *known = added_tokens_find(&t->added, content, size);
    if (known) {
        flags = known->flags;
        flags.special = true;
    }
    return added_token_declare(t, content, size, flags, -1);
}

static status load_all_named(struct tokenizer *t, struct json_object *config) {
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
    struct json_object *value;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        status result = json_object_object_get_ex(config, keys[i], &value) ? load_named(t, value) : OK;
        if (result != OK) return fail_prefix(result, "%s", keys[i]);
    }
    TRY(json_find(config, "additional_special_tokens", json_type_array, &value));
    for (size_t i = 0; value && i < json_object_array_length(value); i++) {
        status result = load_named(t, json_object_array_get_idx(value, i));
        if (result != OK) return fail_prefix(result, "additional_special_tokens[%zu]", i);
    }
    return OK;
}

struct declared {
    int64_t id;
    struct json_object *token;
};

static int by_id(const void *left, const void *right) {
    const struct declared *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

static status load_declared(struct tokenizer *t, const struct declared *declared) {
    const char *content;
    size_t size;
    struct added_token_flags flags;
    status result = added_token_parse(declared->token, &content, &size, &flags);
    if (result == OK) {
        // What tokenizer.json says about a name's id comes first, as in Hugging Face.
        bool known = added_tokens_find(&t->added, content, size) != NULL;
        result = added_token_declare(t, content, size, flags, known ? -1 : declared->id);
    }
    return result == OK ? OK : fail_prefix(result, "added_tokens_decoder.%lld", (long long)declared->id);
}

static status load_decoder(struct tokenizer *t, struct json_object *decoder) {
    struct declared *list = NULL;
    size_t count = 0;
    status result;
    TRY_TO(result, done, NEW(&list, (size_t)json_object_object_length(decoder)));
    json_object_object_foreach(decoder, key, token) {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end || id < 0)
            TRY_TO(result, done, fail(DATAERR, "added_tokens_decoder: \"%s\" is no id", key));
        list[count++] = (struct declared){id, token};
    }
    qsort(list, count, sizeof *list, by_id);
    for (size_t i = 0; i < count; i++) TRY_TO(result, done, load_declared(t, &list[i]));
done:
    free(list);
    return result;
}

static status load_config(struct tokenizer *t, struct json_object *config) {
    struct json_object *decoder;
    bool split_special, prefix_space;
    TRY(json_flag(config, "add_prefix_space", false, &prefix_space));
    if (t->plain_byte_level) t->pre_tokenizer.steps[0].prefix_space = prefix_space;
    TRY(json_flag(config, "split_special_tokens", false, &split_special));
    if (split_special) return fail(DATAERR, "split_special_tokens: true is not supported");
    TRY(json_find(config, "added_tokens_decoder", json_type_object, &decoder));
    if (decoder) TRY(load_decoder(t, decoder));
    return load_all_named(t, config);
}

status load_tokenizer_config(struct tokenizer *t, const char *folder) {
    struct arena memory = {0};
    struct json_object *config = NULL;
    status result = OK;
    char *path = path_join(&memory, folder, "tokenizer_config.json");
    if (!path) TRY_TO(result, done, fail_oom());
    if (path_exists(path)) {
        TRY_TO(result, done, json_file(&config, path));
    } else {
        config = json_object_new_object();
        if (!config) TRY_TO(result, done, fail_oom());
    }
    result = load_config(t, config);
    if (result != OK) fail_prefix(result, "%s", path);
done:
    json_object_put(config);
    arena_release(&memory);
    return result;
}
