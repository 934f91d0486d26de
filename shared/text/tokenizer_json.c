// Reading tokenizer.json. What it may say and this tokenizer does not do is refused by name, never passed over.
#include <string.h>

#include "shared/text/tokenizer_internal.h"

static status refuse_set(struct json_object *model, const char *key) {
    struct json_object *value;
    if (!json_object_object_get_ex(model, key, &value) || !value) return OK;
    bool empty = json_object_is_type(value, json_type_string) ? !json_object_get_string_len(value)
                                                              : json_object_get_double(value) == 0;
    return empty ? OK : fail(DATAERR, "model.%s: %s is not supported", key, json_object_to_json_string(value));
}

static bool names_type(struct json_object *object, const char *type) {
    struct json_object *value;
    return json_object_object_get_ex(object, "type", &value) && value && !strcmp(json_object_get_string(value), type);
}

static const char *type_of(struct json_object *object) {
    struct json_object *value;
    return json_object_object_get_ex(object, "type", &value) && value ? json_object_get_string(value) : "without type";
}

static status load_vocab(struct tokenizer *t, struct json_object *model) {
    struct json_object *vocab;
    TRY(json_find(model, "vocab", json_type_object, &vocab));
    if (!vocab) return fail(DATAERR, "vocab: missing");
    json_object_object_foreach(vocab, name, id) {
        if (!json_object_is_type(id, json_type_int))
            return fail(DATAERR, "vocab: the id of \"%s\" is no whole number", name);
        TRY(vocab_add(&t->vocab, name, strlen(name), json_object_get_int64(id)));
    }
    t->model_count = t->vocab.count;
    return t->model_count ? OK : fail(DATAERR, "vocab: empty");
}

static status load_merge(struct tokenizer *t, struct json_object *merge, uint32_t rank) {
    if (json_object_is_type(merge, json_type_string)) {
        const char *text = json_object_get_string(merge);
        size_t size = (size_t)json_object_get_string_len(merge);
        const char *space = memchr(text, ' ', size);
        if (!space || memchr(space + 1, ' ', size - (size_t)(space + 1 - text)))
            return fail(DATAERR, "merge %u: \"%s\" is not two tokens", rank + 1, text);
        size_t left = (size_t)(space - text);
        return vocab_add_merge(&t->vocab, text, left, space + 1, size - left - 1, rank, true);
    }
    if (!json_object_is_type(merge, json_type_array) || json_object_array_length(merge) != 2)
        return fail(DATAERR, "merge %u: neither a text nor a pair", rank + 1);
    struct json_object *left = json_object_array_get_idx(merge, 0), *right = json_object_array_get_idx(merge, 1);
    if (!json_object_is_type(left, json_type_string) || !json_object_is_type(right, json_type_string))
        return fail(DATAERR, "merge %u: not a pair of texts", rank + 1);
    return vocab_add_merge(&t->vocab, json_object_get_string(left), (size_t)json_object_get_string_len(left),
                           json_object_get_string(right), (size_t)json_object_get_string_len(right), rank, true);
}

static status load_merges(struct tokenizer *t, struct json_object *model) {
    struct json_object *merges;
    TRY(json_find(model, "merges", json_type_array, &merges));
    if (!merges) return fail(DATAERR, "merges: missing");
    for (size_t i = 0; i < json_object_array_length(merges); i++) {
        struct json_object *merge = json_object_array_get_idx(merges, i);
        if (i == 0 && json_object_is_type(merge, json_type_string) &&
            !strncmp(json_object_get_string(merge), "#version", 8))
            continue;
        TRY(load_merge(t, merge, (uint32_t)i));
    }
    return OK;
}

static status load_model(struct tokenizer *t, struct json_object *model) {
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                              "byte_fallback"};
    struct json_object *unknown;
    if (json_object_object_get_ex(model, "type", &unknown) && !names_type(model, "BPE"))
        return fail(DATAERR, "type: %s where BPE should be", type_of(model));
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) TRY(refuse_set(model, unsupported[i]));
    TRY(load_vocab(t, model));
    TRY(load_merges(t, model));
    TRY(bpe_init(&t->bpe, &t->vocab));
    TRY(json_flag(model, "fuse_unk", false, &t->bpe.fuse_unknown));
    TRY(json_flag(model, "ignore_merges", false, &t->bpe.whole_words));
    TRY(json_find(model, "unk_token", json_type_string, &unknown));
    if (!unknown) return OK;
    const char *name = json_object_get_string(unknown);
    t->bpe.unknown = vocab_token_to_id(&t->vocab, name, (size_t)json_object_get_string_len(unknown));
    return t->bpe.unknown >= 0 ? OK : fail(DATAERR, "unk_token: \"%s\" is not in the vocabulary", name);
}

static status load_normalizer(struct tokenizer *t, struct json_object *normalizer) {
    static const char *const forms[] = {
        [NORMALIZE_NFC] = "NFC", [NORMALIZE_NFD] = "NFD", [NORMALIZE_NFKC] = "NFKC", [NORMALIZE_NFKD] = "NFKD"};
    if (names_type(normalizer, "Sequence")) {
        struct json_object *list;
        TRY(json_find(normalizer, "normalizers", json_type_array, &list));
        if (!list || !json_object_array_length(list)) return OK;
        struct json_object *only = json_object_array_get_idx(list, 0);
        if (json_object_array_length(list) > 1 || !json_object_is_type(only, json_type_object))
            return fail(DATAERR, "a Sequence of several is not supported");
        return load_normalizer(t, only);
    }
    for (size_t i = NORMALIZE_NFC; i < sizeof forms / sizeof *forms; i++)
        if (names_type(normalizer, forms[i])) {
            t->form = (enum normalize_form)i;
            return OK;
        }
    return fail(DATAERR, "%s is not supported", type_of(normalizer));
}

// A plain text as a regular expression.
static status quote(const char *text, size_t size, struct buf *out) {
    for (size_t i = 0; i < size; i++) {
        if (strchr("\\^$.[]|()?*+{}-#&~ ", text[i]) && text[i]) TRY(buf_append(out, "\\", 1));
        TRY(text[i] ? buf_append(out, text + i, 1) : buf_puts(out, "\\x00"));
    }
    return OK;
}

static status load_split(struct tokenizer *t, struct json_object *split) {
    struct json_object *pattern, *behavior, *regex = NULL, *plain = NULL;
    bool invert;
    TRY(json_find(split, "pattern", json_type_object, &pattern));
    TRY(json_find(split, "behavior", json_type_string, &behavior));
    TRY(json_flag(split, "invert", false, &invert));
    if (pattern) TRY(json_find(pattern, "Regex", json_type_string, &regex));
    if (pattern) TRY(json_find(pattern, "String", json_type_string, &plain));
    if (!regex && !plain) return fail(DATAERR, "Split: no pattern");
    const char *how = behavior ? json_object_get_string(behavior) : "without behavior";
    bool removed = !strcmp(how, "Removed");
    if (!removed && strcmp(how, "Isolated") != 0) return fail(DATAERR, "Split: %s is not supported", how);
    enum split_behavior rule = !removed ? SPLIT_ISOLATED : invert ? SPLIT_REMOVED_INVERT : SPLIT_REMOVED;
    struct json_object *given = regex ? regex : plain;
    struct buf quoted = {0};
    status result = OK;
    if (plain) result = quote(json_object_get_string(plain), (size_t)json_object_get_string_len(plain), &quoted);
    if (result == OK)
        result = pre_tokenizer_add_split(&t->pre_tokenizer, plain ? quoted.data : json_object_get_string(given),
                                         plain ? quoted.size : (size_t)json_object_get_string_len(given), rule);
    buf_release(&quoted);
    return result;
}

// Adds a step, or a Sequence's steps; *byte_level says whether the last one was the byte-level step.
static status load_pre_tokenizer(struct tokenizer *t, struct json_object *step, bool *byte_level) {
    if (!json_object_is_type(step, json_type_object)) return fail(DATAERR, "not an object");
    if (names_type(step, "Sequence")) {
        struct json_object *list;
        TRY(json_find(step, "pretokenizers", json_type_array, &list));
        for (size_t i = 0; list && i < json_object_array_length(list); i++)
            TRY(load_pre_tokenizer(t, json_object_array_get_idx(list, i), byte_level));
        return OK;
    }
    if (*byte_level) return fail(DATAERR, "%s after ByteLevel is not supported", type_of(step));
    if (names_type(step, "Split")) return load_split(t, step);
    if (!names_type(step, "ByteLevel")) return fail(DATAERR, "%s is not supported", type_of(step));
    bool prefix_space, pattern;
    TRY(json_flag(step, "add_prefix_space", true, &prefix_space));
    TRY(json_flag(step, "use_regex", true, &pattern));
    *byte_level = true;
    return pre_tokenizer_add_byte_level(&t->pre_tokenizer, prefix_space, pattern);
}

// A post_processor or decoder must be ByteLevel, or a Sequence of it, or left out.
static status require_byte_level(struct json_object *part) {
    if (names_type(part, "ByteLevel")) return OK;
    struct json_object *list = NULL;
    if (names_type(part, "Sequence") && !json_object_object_get_ex(part, "processors", &list))
        json_object_object_get_ex(part, "decoders", &list);
    bool good = list && json_object_is_type(list, json_type_array);
    for (size_t i = 0; good && i < json_object_array_length(list); i++)
        good = names_type(json_object_array_get_idx(list, i), "ByteLevel");
    return good ? OK : fail(DATAERR, "%s is not supported", type_of(part));
}

status added_token_parse(struct json_object *json, const char **content, size_t *size,
                         struct added_token_flags *flags) {
    struct json_object *text;
    *flags = (struct added_token_flags){0};
    if (!json_object_is_type(json, json_type_object)) return fail(DATAERR, "not an object");
    TRY(json_find(json, "content", json_type_string, &text));
    if (!text) return fail(DATAERR, "content: missing");
    *content = json_object_get_string(text);
    *size = (size_t)json_object_get_string_len(text);
    TRY(json_flag(json, "single_word", false, &flags->single_word));
    TRY(json_flag(json, "lstrip", false, &flags->lstrip));
    TRY(json_flag(json, "rstrip", false, &flags->rstrip));
    TRY(json_flag(json, "special", false, &flags->special));
    return json_flag(json, "normalized", !flags->special, &flags->normalized);
}

static status load_added_tokens(struct tokenizer *t, struct json_object *list) {
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *token = json_object_array_get_idx(list, i), *id = NULL;
        const char *content = NULL;
        size_t size = 0;
        struct added_token_flags flags;
        status result = added_token_parse(token, &content, &size, &flags);
        if (result == OK) result = json_find(token, "id", json_type_int, &id);
        if (result == OK) result = id ? OK : fail(DATAERR, "id: missing");
        if (result == OK) result = added_token_declare(t, content, size, flags, json_object_get_int64(id));
        if (result != OK) return fail_prefix(result, "[%zu]", i);
    }
    return OK;
}

static status load_part(struct tokenizer *t, const char *key, struct json_object *part) {
    if (!strcmp(key, "model")) return load_model(t, part);
    if (!strcmp(key, "normalizer")) return load_normalizer(t, part);
    if (!strcmp(key, "pre_tokenizer")) {
        bool byte_level = false;
        t->plain_byte_level = names_type(part, "ByteLevel");
        TRY(load_pre_tokenizer(t, part, &byte_level));
        return byte_level ? OK : fail(DATAERR, "no ByteLevel in it: not a byte-level tokenizer");
    }
    if (!strcmp(key, "added_tokens")) return load_added_tokens(t, part);
    return require_byte_level(part);
}

status load_tokenizer_json(struct tokenizer *t, struct json_object *json) {
    static const struct {
        const char *key;
        enum json_type type;
        bool needed;
    } parts[] = {
        {"normalizer", json_type_object, false}, {"pre_tokenizer", json_type_object, true},
        {"decoder", json_type_object, false},    {"post_processor", json_type_object, false},
        {"model", json_type_object, true},       {"added_tokens", json_type_array, false},
    };
    struct json_object *version;
    TRY(json_find(json, "version", json_type_string, &version));
    if (version && strcmp(json_object_get_string(version), "1.0") != 0)
        return fail(DATAERR, "version: %s where 1.0 should be", json_object_get_string(version));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct json_object *part;
        TRY(json_find(json, parts[i].key, parts[i].type, &part));
        if (!part && parts[i].needed) return fail(DATAERR, "%s: missing", parts[i].key);
        status result = part ? load_part(t, parts[i].key, part) : OK;
        if (result != OK) return fail_prefix(result, "%s", parts[i].key);
    }
    return OK;
}
