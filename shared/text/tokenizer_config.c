// Reads added tokens: added_tokens of tokenizer.json, and tokenizer_config.json.
//
// An added token that is in the vocabulary keeps its id. A new one gets the next id, as in Hugging Face, so the order
// in which the tokens are read matters.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/text/tokenizer_internal.h"

// Reads the content and the flags of an added token; the content lives as long as `json`.
static status tokenizer_config_parse(struct json *json, struct added_token *token) {
    struct json *content;
    *token = (struct added_token){.id = -1};
    if (!json_is(json, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_get(json, "content", JSON_STRING, &content));
    if (!content) return fail(DATAERR, "content: missing");
    token->content = json_text(content);
    token->size = content->text.size;
    TRY(json_get_bool(json, "single_word", false, &token->flags.single_word));
    TRY(json_get_bool(json, "lstrip", false, &token->flags.lstrip));
    TRY(json_get_bool(json, "rstrip", false, &token->flags.rstrip));
    TRY(json_get_bool(json, "special", false, &token->flags.special));
    return json_get_bool(json, "normalized", !token->flags.special, &token->flags.normalized);
}

// Adds a token, whose id must be `expected` unless that is -1. An empty token is ignored.
static status tokenizer_config_add(struct tokenizer *t, const struct added_token *token, int64_t expected) {
    if (!token->size) return OK;
    int64_t id = vocab_token_to_id(&t->vocab, token->content, token->size);
    bool is_new = id < 0;
    if (is_new) {
        id = (int64_t)t->model_count;
        for (size_t i = 0; i < t->added.count; i++)
            if (t->added.tokens[i].id >= id) id = t->added.tokens[i].id + 1;
    }
    if (expected >= 0 && expected != id)
        return fail(DATAERR, "token \"%.*s\" should have id %lld but has %lld", (int)token->size, token->content,
                    (long long)expected, (long long)id);
    TRY(vocab_add(&t->vocab, token->content, token->size, id));
    assert((size_t)id < t->vocab.size);
    t->vocab.entries[id].added_only |= is_new;
    added_tokens_add(&t->added, token->content, token->size, (int32_t)id, token->flags);
    return OK;
}

status tokenizer_read_added_tokens(struct tokenizer *t, struct json *list) {
    for (size_t i = 0; i < json_count(list); i++) {
        struct json *json = json_item(list, i), *id = NULL;
        struct added_token token;
        status result = tokenizer_config_parse(json, &token);
        if (result == OK) result = json_get(json, "id", JSON_NUMBER, &id);
        if (result == OK) result = id ? OK : fail(DATAERR, "id: missing");
        if (result == OK) result = tokenizer_config_add(t, &token, json_int_or(id, 0));
        if (result != OK) return fail_prefix(result, "[%zu]", i);
    }
    return OK;
}

// Adds a special token that the file names by its role: a string, or an object with flags.
static status tokenizer_config_add_named(struct tokenizer *t, struct json *value) {
    struct added_token token = {.id = -1};
    if (!value) return OK;
    if (json_is(value, JSON_STRING)) {
        token.content = json_text(value);
        token.size = value->text.size;
    } else {
        TRY(tokenizer_config_parse(value, &token));
    }
    const struct added_token *known = added_tokens_find(&t->added, token.content, token.size);
    if (known) token.flags = known->flags;
    token.flags.special = true;
    return tokenizer_config_add(t, &token, -1);
}

struct tokenizer_config_entry {
    int64_t id;
    struct json *token;
};

static int tokenizer_config_compare(const void *left, const void *right) {
    const struct tokenizer_config_entry *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

// Reads added_tokens_decoder in ascending order of the ids, which are its keys. The id that tokenizer.json gives a
// token takes precedence, as in Hugging Face.
static status tokenizer_config_read_decoder(struct tokenizer *t, struct json *decoder) {
    struct tokenizer_config_entry *entries = NULL;
    size_t count = 0;
    status result = OK;
    NEW(&entries, (size_t)json_count(decoder));
    JSON_EACH(value, decoder) {
        const char *key = value->key.data;
        char *end;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end || id < 0)
            TRY_TO(result, done, fail(DATAERR, "added_tokens_decoder: \"%s\" is not an id", key));
        entries[count++] = (struct tokenizer_config_entry){id, value};
    }
    qsort(entries, count, sizeof *entries, tokenizer_config_compare);
    for (size_t i = 0; i < count; i++) {
        struct added_token token;
        result = tokenizer_config_parse(entries[i].token, &token);
        if (result == OK) {
            bool known = added_tokens_find(&t->added, token.content, token.size) != NULL;
            result = tokenizer_config_add(t, &token, known ? -1 : entries[i].id);
        }
        if (result != OK)
            TRY_TO(result, done, fail_prefix(result, "added_tokens_decoder.%lld", (long long)entries[i].id));
    }
done:
    free(entries);
    return result;
}

status tokenizer_read_config(struct tokenizer *t, const char *dir) {
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    struct arena memory = {0};
    struct json *config, *value;
    bool split_special, add_prefix_space;
    status result;
    char *path = path_join(&memory, dir, "tokenizer_config.json");
    if (path_exists(path)) {
        TRY_TO(result, done, json_parse_file(&config, &memory, path));
    } else {
        config = json_new(&memory, JSON_OBJECT); // the defaults count
    }
    TRY_TO(result, failed, json_get_bool(config, "add_prefix_space", false, &add_prefix_space));
    if (t->byte_level_only) t->encoder->pre_tokenizer.steps[0].add_prefix_space = add_prefix_space;
    TRY_TO(result, failed, json_get_bool(config, "split_special_tokens", false, &split_special));
    if (split_special) TRY_TO(result, failed, fail(DATAERR, "split_special_tokens: true is not supported"));
    TRY_TO(result, failed, json_get_bool(config, "clean_up_tokenization_spaces", false, &t->clean_up_spaces));
    TRY_TO(result, failed, json_get(config, "added_tokens_decoder", JSON_OBJECT, &value));
    if (value) TRY_TO(result, failed, tokenizer_config_read_decoder(t, value));
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (!json_find(config, roles[i], &value)) continue;
        result = tokenizer_config_add_named(t, value);
        if (result != OK) TRY_TO(result, failed, fail_prefix(result, "%s", roles[i]));
    }
    TRY_TO(result, failed, json_get(config, "additional_special_tokens", JSON_ARRAY, &value));
    for (size_t i = 0; value && i < json_count(value); i++) {
        result = tokenizer_config_add_named(t, json_item(value, i));
        if (result != OK) TRY_TO(result, failed, fail_prefix(result, "additional_special_tokens[%zu]", i));
    }
failed:
    if (result != OK) fail_prefix(result, "%s", path);
done:
    arena_release(&memory);
    return result;
}
