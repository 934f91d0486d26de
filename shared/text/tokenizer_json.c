// Reads tokenizer.json, or the older vocab.json and merges.txt. A setting that this tokenizer does not implement is
// refused by name, never ignored. `truncation` and `padding` say nothing, as in transformers.
#include <string.h>

#include "shared/base/file.h"
#include "shared/text/tokenizer_internal.h"

static bool tokenizer_json_is_type(struct json *object, const char *type) {
    struct json *value;
    return json_find(object, "type", &value) && value && !strcmp(json_text(value), type);
}

static const char *tokenizer_json_type(struct json *object) {
    struct json *value;
    return json_find(object, "type", &value) && value ? json_text(value) : "without type";
}

// Reads a mapping of tokens to ids.
static status tokenizer_json_read_vocab(struct tokenizer *t, struct json *vocab) {
    JSON_EACH(token, vocab) {
        int64_t id;
        if (!json_int(token, &id)) return fail(DATAERR, "vocab: the id of \"%s\" is not an integer", token->key.data);
        TRY(vocab_add(&t->vocab, token->key.data, token->key.size, id));
    }
    t->model_count = t->vocab.count;
    return t->model_count ? OK : fail(DATAERR, "vocab: empty");
}

static status tokenizer_json_read_model(struct tokenizer *t, struct json *model) {
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                              "byte_fallback"};
    struct bpe *bpe = &t->encoder->bpe;
    struct json *value, *merges;
    if (json_find(model, "type", &value) && !tokenizer_json_is_type(model, "BPE"))
        return fail(DATAERR, "type: %s, but only BPE is supported", tokenizer_json_type(model));
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        if (!json_find(model, unsupported[i], &value) || !value) continue;
        bool off = json_is(value, JSON_STRING) ? !value->text.size
                   : json_is(value, JSON_BOOL) ? !value->boolean
                                               : json_double_or(value, 0) == 0;
        if (!off) return fail(DATAERR, "%s: %s is not supported", unsupported[i], json_text(value));
    }
    TRY(json_get(model, "vocab", JSON_OBJECT, &value));
    if (!value) return fail(DATAERR, "vocab: missing");
    TRY(tokenizer_json_read_vocab(t, value));
    TRY(json_get(model, "merges", JSON_ARRAY, &merges));
    if (!merges) return fail(DATAERR, "merges: missing");
    for (size_t i = 0; i < json_count(merges); i++) {
        // A merge is "left right" or ["left", "right"].
        struct json *merge = json_item(merges, i);
        uint32_t rank = (uint32_t)i;
        if (json_is(merge, JSON_STRING)) {
            const char *text = json_text(merge);
            size_t size = merge->text.size;
            if (i == 0 && !strncmp(text, "#version", 8)) continue;
            const char *space = memchr(text, ' ', size);
            if (!space || memchr(space + 1, ' ', size - (size_t)(space + 1 - text)))
                return fail(DATAERR, "merge %u: \"%s\" is not two tokens", rank + 1, text);
            size_t left_size = (size_t)(space - text);
            TRY(vocab_add_merge(&t->vocab, text, left_size, space + 1, size - left_size - 1, rank, true));
            continue;
        }
        if (!json_is(merge, JSON_ARRAY) || json_count(merge) != 2)
            return fail(DATAERR, "merge %u: neither a string nor a pair", rank + 1);
        struct json *left = json_item(merge, 0), *right = json_item(merge, 1);
        if (!json_is(left, JSON_STRING) || !json_is(right, JSON_STRING))
            return fail(DATAERR, "merge %u: not a pair of strings", rank + 1);
        TRY(vocab_add_merge(&t->vocab, json_text(left), left->text.size, json_text(right), right->text.size, rank,
                            true));
    }
    bpe_init(bpe, &t->vocab);
    TRY(json_get_bool(model, "fuse_unk", false, &bpe->fuse_unk));
    TRY(json_get_bool(model, "ignore_merges", false, &bpe->ignore_merges));
    TRY(json_get(model, "unk_token", JSON_STRING, &value));
    if (!value) return OK;
    const char *token = json_text(value);
    bpe->unk_id = vocab_token_to_id(&t->vocab, token, value->text.size);
    return bpe->unk_id >= 0 ? OK : fail(DATAERR, "unk_token: \"%s\" is not in the vocabulary", token);
}

static status tokenizer_json_read_normalizer(struct tokenizer *t, struct json *normalizer) {
    static const char *const forms[] = {
        [NORMALIZE_NFC] = "NFC", [NORMALIZE_NFD] = "NFD", [NORMALIZE_NFKC] = "NFKC", [NORMALIZE_NFKD] = "NFKD"};
    if (tokenizer_json_is_type(normalizer, "Sequence")) {
        struct json *list;
        TRY(json_get(normalizer, "normalizers", JSON_ARRAY, &list));
        if (!list || !json_count(list)) return OK;
        struct json *only = json_item(list, 0);
        if (json_count(list) > 1 || !json_is(only, JSON_OBJECT))
            return fail(DATAERR, "a Sequence of several normalizers is not supported");
        return tokenizer_json_read_normalizer(t, only);
    }
    for (size_t i = NORMALIZE_NFC; i < sizeof forms / sizeof *forms; i++)
        if (tokenizer_json_is_type(normalizer, forms[i])) {
            t->form = (enum normalize_form)i;
            return OK;
        }
    return fail(DATAERR, "%s is not supported", tokenizer_json_type(normalizer));
}

// Reads a step or a Sequence of steps; *byte_level becomes true at the ByteLevel step, which must be the last one. The
// pattern of a Split step is a regular expression, or a string, which is escaped.
static status tokenizer_json_read_step(struct tokenizer *t, struct json *step, bool *byte_level) {
    struct pre_tokenizer *pre_tokenizer = &t->encoder->pre_tokenizer;
    if (!json_is(step, JSON_OBJECT)) return fail(DATAERR, "not an object");
    if (tokenizer_json_is_type(step, "Sequence")) {
        struct json *list;
        TRY(json_get(step, "pretokenizers", JSON_ARRAY, &list));
        for (size_t i = 0; list && i < json_count(list); i++)
            TRY(tokenizer_json_read_step(t, json_item(list, i), byte_level));
        return OK;
    }
    const char *type = tokenizer_json_type(step);
    if (*byte_level) return fail(DATAERR, "%s after ByteLevel is not supported", type);
    if (tokenizer_json_is_type(step, "ByteLevel")) {
        bool add_prefix_space, use_regex;
        TRY(json_get_bool(step, "add_prefix_space", true, &add_prefix_space));
        TRY(json_get_bool(step, "use_regex", true, &use_regex));
        *byte_level = true;
        return pre_tokenizer_add_byte_level(pre_tokenizer, add_prefix_space, use_regex);
    }
    if (!tokenizer_json_is_type(step, "Split")) return fail(DATAERR, "%s is not supported", type);
    struct json *pattern, *behavior, *regex = NULL, *literal = NULL;
    bool invert;
    TRY(json_get(step, "pattern", JSON_OBJECT, &pattern));
    TRY(json_get(step, "behavior", JSON_STRING, &behavior));
    TRY(json_get_bool(step, "invert", false, &invert));
    if (pattern) TRY(json_get(pattern, "Regex", JSON_STRING, &regex));
    if (pattern) TRY(json_get(pattern, "String", JSON_STRING, &literal));
    if (!regex && !literal) return fail(DATAERR, "Split: no pattern");
    const char *name = behavior ? json_text(behavior) : "without behavior";
    bool removed = !strcmp(name, "Removed");
    if (!removed && strcmp(name, "Isolated") != 0) return fail(DATAERR, "Split: %s is not supported", name);
    enum split_behavior rule = !removed ? SPLIT_ISOLATED : invert ? SPLIT_REMOVED_INVERT : SPLIT_REMOVED;
    if (!literal) return pre_tokenizer_add_split(pre_tokenizer, json_text(regex), regex->text.size, rule);
    struct buf escaped = {0};
    const char *text = json_text(literal);
    buf_puts(&escaped, "");
    status result = OK;
    for (size_t i = 0; i < literal->text.size; i++) {
        if (strchr("\\^$.[]|()?*+{}-#&~ ", text[i]) && text[i]) buf_append(&escaped, "\\", 1);
        if (text[i])
            buf_append(&escaped, text + i, 1);
        else
            buf_puts(&escaped, "\\x00");
    }
    if (result == OK) result = pre_tokenizer_add_split(pre_tokenizer, escaped.data, escaped.size, rule);
    buf_release(&escaped);
    return result;
}

static status tokenizer_json_read_pre_tokenizer(struct tokenizer *t, struct json *pre_tokenizer) {
    bool byte_level = false;
    t->byte_level_only = tokenizer_json_is_type(pre_tokenizer, "ByteLevel");
    TRY(tokenizer_json_read_step(t, pre_tokenizer, &byte_level));
    return byte_level ? OK : fail(DATAERR, "no ByteLevel step: not a byte-level tokenizer");
}

// Checks a decoder, which must be ByteLevel or a Sequence of nothing else.
static status tokenizer_json_check_decoder(struct tokenizer *t, struct json *part) {
    (void)t;
    if (tokenizer_json_is_type(part, "ByteLevel")) return OK;
    struct json *list = NULL;
    if (tokenizer_json_is_type(part, "Sequence")) json_find(part, "decoders", &list);
    bool good = list && json_is(list, JSON_ARRAY);
    for (size_t i = 0; good && i < json_count(list); i++)
        good = tokenizer_json_is_type(json_item(list, i), "ByteLevel");
    return good ? OK : fail(DATAERR, "%s is not supported", tokenizer_json_type(part));
}

static status tokenizer_json_read_post_processor(struct tokenizer *t, struct json *part) {
    return post_processor_read(&t->post_processor, part, &t->vocab);
}

status tokenizer_read_json(struct tokenizer *t, struct json *json) {
    static const struct {
        const char *key;
        enum json_type type;
        bool required;
        status (*read)(struct tokenizer *t, struct json *part);
    } parts[] = {
        // the ids of added tokens follow those of the model, and the post-processor's are among both
        {"normalizer", JSON_OBJECT, false, tokenizer_json_read_normalizer},
        {"pre_tokenizer", JSON_OBJECT, true, tokenizer_json_read_pre_tokenizer},
        {"decoder", JSON_OBJECT, false, tokenizer_json_check_decoder},
        {"model", JSON_OBJECT, true, tokenizer_json_read_model},
        {"added_tokens", JSON_ARRAY, false, tokenizer_read_added_tokens},
        {"post_processor", JSON_OBJECT, false, tokenizer_json_read_post_processor},
    };
    struct json *version;
    TRY(json_get(json, "version", JSON_STRING, &version));
    if (version && strcmp(json_text(version), "1.0") != 0)
        return fail(DATAERR, "version: %s, but only 1.0 is supported", json_text(version));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct json *part;
        TRY(json_get(json, parts[i].key, parts[i].type, &part));
        if (!part && parts[i].required) return fail(DATAERR, "%s: missing", parts[i].key);
        status result = part ? parts[i].read(t, part) : OK;
        if (result != OK) return fail_prefix(result, "%s", parts[i].key);
    }
    return OK;
}

// Returns the next word of line[*at..size) and moves *at behind it; *word_size is 0 at the end of the line.
static const char *tokenizer_json_next_word(const char *line, size_t size, size_t *at, size_t *word_size) {
    static const char blank[] = " \t\r\v\f";
    while (*at < size && line[*at] && strchr(blank, line[*at])) ++*at;
    size_t start = *at;
    while (*at < size && !(line[*at] && strchr(blank, line[*at]))) ++*at;
    *word_size = *at - start;
    return line + start;
}

status tokenizer_read_vocab_files(struct tokenizer *t, const char *dir) {
    struct arena memory = {0};
    struct json *vocab = NULL;
    struct buf merges = {0};
    char *vocab_path = path_join(&memory, dir, "vocab.json"), *merges_path = path_join(&memory, dir, "merges.txt");
    status result;
    TRY_TO(result, done, json_parse_file(&vocab, &memory, vocab_path));
    result = tokenizer_json_read_vocab(t, vocab);
    if (result != OK) TRY_TO(result, done, fail_prefix(result, "%s", vocab_path));
    TRY_TO(result, done, file_read(merges_path, &merges));
    uint32_t rank = 0;
    size_t number = 1, at = 0;
    for (; at < merges.size; number++) {
        const char *line = merges.data + at, *end = memchr(line, '\n', merges.size - at);
        size_t size = end ? (size_t)(end - line) : merges.size - at, used = 0, left_size, right_size, more;
        const char *left = tokenizer_json_next_word(line, size, &used, &left_size);
        const char *right = tokenizer_json_next_word(line, size, &used, &right_size);
        tokenizer_json_next_word(line, size, &used, &more);
        at += size + 1;
        bool header = number == 1 && left_size && left[0] == '#'; // line 1 may be a header, which is not a merge
        if (!left_size || (header && left_size >= 8 && !memcmp(left, "#version", 8))) continue;
        result = right_size && !more ? vocab_add_merge(&t->vocab, left, left_size, right, right_size, rank, false)
                                     : fail(DATAERR, "\"%.*s\" is not two tokens", (int)size, line);
        if (header && result == DATAERR) continue;
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "%s: line %zu", merges_path, number));
        rank++;
    }
    bpe_init(&t->encoder->bpe, &t->vocab);
    t->form = NORMALIZE_NFC;
    TRY_TO(result, done,
           pre_tokenizer_add_split(&t->encoder->pre_tokenizer, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2),
                                   SPLIT_ISOLATED));
    TRY_TO(result, done, pre_tokenizer_add_byte_level(&t->encoder->pre_tokenizer, false, false));
done:
    buf_release(&merges);
    arena_release(&memory);
    return result;
}
