// Opens a model directory: reads tokenizer.json, or the older vocab.json and merges.txt, and tokenizer_config.json. A
// setting that this tokenizer does not implement is refused by name, never ignored. `truncation` and `padding` say
// nothing, as in transformers.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/text/tokenizer_internal.h"

// ---- added_tokens ----

// An added token that is in the vocabulary keeps its id. A new one gets the next id, as in Hugging Face, so the order
// in which the tokens are read matters.

struct added_token *added_tokens_find(const struct added_tokens *a, const char *content, size_t size) {
    for (size_t i = 0; i < a->count; i++)
        if (a->tokens[i].size == size && !memcmp(a->tokens[i].content, content, size)) return &a->tokens[i];
    return NULL;
}

// Adds a token, whose id must be `expected` unless that is -1. An empty token is ignored. A token whose content is
// there already gets the new flags, but stays special if it was.
static status added_tokens_add(struct tokenizer *t, const struct added_token *token, int64_t expected) {
    struct added_tokens *a = &t->added;
    if (!token->size) return OK;
    int64_t id = vocab_token_to_id(&t->vocab, token->content, token->size);
    bool is_new = id < 0;
    if (is_new) {
        id = (int64_t)t->model_count;
        for (size_t i = 0; i < a->count; i++)
            if (a->tokens[i].id >= id) id = a->tokens[i].id + 1;
    }
    if (expected >= 0 && expected != id)
        return fail(DATAERR, "token \"%.*s\" should have id %lld but has %lld", (int)token->size, token->content,
                    (long long)expected, (long long)id);
    TRY(vocab_add(&t->vocab, token->content, token->size, id));
    assert((size_t)id < t->vocab.size);
    t->vocab.entries[id].added_only |= is_new;
    struct added_token *known = added_tokens_find(a, token->content, token->size);
    if (known) {
        const bool special = known->flags.special;
        known->flags = token->flags;
        known->flags.special |= special;
        return OK;
    }
    GROW(&a->tokens, a->count);
    a->tokens[a->count++] = (struct added_token){t->vocab.entries[id].token, token->size, (int32_t)id, token->flags};
    return OK;
}

// Reads the content and the flags of an added token; the content lives as long as `json`.
static status added_token_parse(struct json *json, struct added_token *token) {
    struct json *content;
    *token = (struct added_token){.id = -1};
    if (!json_is(json, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_require(json, "content", JSON_STRING, &content));
    token->content = json_text(content);
    token->size = content->text.size;
    TRY(json_get_bool(json, "single_word", false, &token->flags.single_word));
    TRY(json_get_bool(json, "lstrip", false, &token->flags.lstrip));
    TRY(json_get_bool(json, "rstrip", false, &token->flags.rstrip));
    TRY(json_get_bool(json, "special", false, &token->flags.special));
    return json_get_bool(json, "normalized", !token->flags.special, &token->flags.normalized);
}

// Reads added_tokens of tokenizer.json. DATAERR with the index and the error.
static status added_tokens_read(struct tokenizer *t, struct json *list) {
    for (size_t i = 0; i < json_count(list); i++) {
        struct json *json = json_item(list, i), *id = NULL;
        struct added_token token;
        status result = added_token_parse(json, &token);
        if (result == OK) result = json_require(json, "id", JSON_NUMBER, &id);
        if (result == OK) result = added_tokens_add(t, &token, json_int_or(id, 0));
        if (result != OK) return fail_prefix(result, "[%zu]", i);
    }
    return OK;
}

// ---- post_processor ----

// Appends a piece of a template: {"SpecialToken": {"id": ...}}, whose ids special_tokens has, or
// {"Sequence": {"id": "A"}} for the first text.
static status post_processor_read_piece(struct token_list *template, struct json *piece, bool pair,
                                        struct json *specials, const struct vocab *v) {
    struct json *special, *sequence, *id, *ids;
    if (!json_is(piece, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_get(piece, "SpecialToken", JSON_OBJECT, &special));
    TRY(json_get(piece, "Sequence", JSON_OBJECT, &sequence));
    if (!special == !sequence) return fail(DATAERR, "neither SpecialToken nor Sequence");
    TRY(json_require(special ? special : sequence, "id", JSON_STRING, &id));
    const char *name = json_text(id);
    if (sequence) {
        const bool first = !strcmp(name, "A"), second = !strcmp(name, "B") && pair;
        if (!first && !second) return fail(DATAERR, "Sequence: there is no text %s", name);
        token_list_append(template, first ? POST_PROCESSOR_FIRST : POST_PROCESSOR_SECOND);
        return OK;
    }
    TRY(json_get(specials, name, JSON_OBJECT, &special));
    if (!special) return fail(DATAERR, "special_tokens has no %s", name);
    TRY(json_get(special, "ids", JSON_ARRAY, &ids));
    if (!ids) return fail(DATAERR, "special_tokens.%s.ids: missing", name);
    for (size_t i = 0; i < json_count(ids); i++) {
        int64_t token;
        if (!json_int(json_item(ids, i), &token))
            return fail(DATAERR, "special_tokens.%s.ids[%zu]: not an integer", name, i);
        if (token < 0 || (uint64_t)token >= v->size || !v->entries[token].token)
            return fail(DATAERR, "special_tokens.%s.ids[%zu]: %lld is not in the vocabulary", name, i,
                        (long long)token);
        token_list_append(template, token);
    }
    return OK;
}

// Reads a post_processor: ByteLevel, which adds no tokens, TemplateProcessing, or a Sequence of these with one template
// at most. DATAERR with the key and the error, also for a special token whose id is not in the vocabulary.
static status post_processor_read(struct tokenizer *t, struct json *json) {
    enum { MAX_TOKENS = 256 }; // a longer template is taken for broken
    static const char *const keys[] = {"single", "pair"};
    struct token_list *const templates[] = {&t->post_processor.single, &t->post_processor.pair};
    struct json *type, *list, *specials;
    if (!json_is(json, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_get(json, "type", JSON_STRING, &type));
    const char *name = type ? json_text(type) : "without type";
    if (!strcmp(name, "ByteLevel")) return OK; // changes offsets only
    if (!strcmp(name, "Sequence")) {
        TRY(json_require(json, "processors", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_count(list); i++) {
            status result = post_processor_read(t, json_item(list, i));
            if (result != OK) return fail_prefix(result, "processors[%zu]", i);
        }
        return OK;
    }
    if (strcmp(name, "TemplateProcessing") != 0) return fail(DATAERR, "%s is not supported", name);
    if (t->post_processor.is_template) return fail(DATAERR, "a second TemplateProcessing is not supported");
    t->post_processor.is_template = true;
    TRY(json_require(json, "special_tokens", JSON_OBJECT, &specials));
    for (int pair = 0; pair < 2; pair++) {
        TRY(json_require(json, keys[pair], JSON_ARRAY, &list));
        for (size_t i = 0; i < json_count(list); i++) {
            status result = post_processor_read_piece(templates[pair], json_item(list, i), pair, specials, &t->vocab);
            if (result == OK && templates[pair]->count > MAX_TOKENS)
                result = fail(DATAERR, "more than %d tokens", MAX_TOKENS);
            if (result != OK) return fail_prefix(result, "%s[%zu]", keys[pair], i);
        }
    }
    return OK;
}

// ---- tokenizer.json ----

static const char *tokenizer_json_type(struct json *object) {
    struct json *type = json_at(object, "type");
    return type ? json_text(type) : "without type";
}

static bool tokenizer_json_is_type(struct json *object, const char *type) {
    return !strcmp(tokenizer_json_type(object), type);
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
    TRY(json_require(model, "vocab", JSON_OBJECT, &value));
    TRY(tokenizer_json_read_vocab(t, value));
    TRY(json_require(model, "merges", JSON_ARRAY, &merges));
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
        const char *gpt2 = use_regex ? pre_tokenizer_gpt2 : NULL;
        return pre_tokenizer_add(pre_tokenizer, gpt2, strlen(pre_tokenizer_gpt2), SPLIT_ISOLATED, add_prefix_space);
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
    const struct string source = (literal ? literal : regex)->text;
    struct buf escaped = {0};
    buf_puts(&escaped, "");
    for (size_t i = 0; i < source.size; i++) {
        const char c = source.data[i];
        if (literal && c && strchr("\\^$.[]|()?*+{}-#&~ ", c)) buf_puts(&escaped, "\\");
        if (literal && !c)
            buf_puts(&escaped, "\\x00");
        else
            buf_append(&escaped, &c, 1);
    }
    status result = pre_tokenizer_add(pre_tokenizer, escaped.data, escaped.size, rule, false);
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

static status tokenizer_json_read(struct tokenizer *t, struct json *json) {
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
        {"added_tokens", JSON_ARRAY, false, added_tokens_read},
        {"post_processor", JSON_OBJECT, false, post_processor_read},
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

// Reads vocab.json and merges.txt of a directory; normalizer and pattern are Qwen2's. DATAERR with the file.
static status tokenizer_read_vocab_files(struct tokenizer *t, const char *dir) {
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
    struct pre_tokenizer *pre_tokenizer = &t->encoder->pre_tokenizer;
    TRY_TO(result, done,
           pre_tokenizer_add(pre_tokenizer, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2), SPLIT_ISOLATED, false));
    TRY_TO(result, done, pre_tokenizer_add(pre_tokenizer, NULL, 0, SPLIT_ISOLATED, false));
done:
    buf_release(&merges);
    arena_release(&memory);
    return result;
}

// ---- tokenizer_config.json ----

// Adds a special token that the file names by its role: a string, or an object with flags.
static status tokenizer_config_add_named(struct tokenizer *t, struct json *value) {
    struct added_token token = {.id = -1};
    if (!value) return OK;
    if (json_is(value, JSON_STRING)) {
        token.content = json_text(value);
        token.size = value->text.size;
    } else {
        TRY(added_token_parse(value, &token));
    }
    const struct added_token *known = added_tokens_find(&t->added, token.content, token.size);
    if (known) token.flags = known->flags;
    token.flags.special = true;
    return added_tokens_add(t, &token, -1);
}

// Returns the id that a key of added_tokens_decoder states, -1 if it is none.
static int64_t tokenizer_config_id(const struct json *token) {
    char *end;
    const long long id = strtoll(token->key.data, &end, 10);
    return end == token->key.data || *end ? -1 : id;
}

static int tokenizer_config_compare(const void *left, const void *right) {
    const int64_t a = tokenizer_config_id(left), b = tokenizer_config_id(right);
    return (a > b) - (a < b);
}

// Reads tokenizer_config.json if the directory has one: added tokens and which of them are special. DATAERR with the
// file.
static status tokenizer_read_config(struct tokenizer *t, const char *dir) {
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    struct arena memory = {0};
    struct json *config, *value, *decoder;
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
    // In ascending order of the ids, which are the keys. The id that tokenizer.json gives a token takes precedence, as
    // in Hugging Face.
    TRY_TO(result, failed, json_get(config, "added_tokens_decoder", JSON_OBJECT, &decoder));
    if (!decoder) decoder = json_new(&memory, JSON_OBJECT);
    JSON_EACH(token, decoder)
    if (tokenizer_config_id(token) < 0)
        TRY_TO(result, failed, fail(DATAERR, "added_tokens_decoder: \"%s\" is not an id", token->key.data));
    if (decoder->count) qsort(decoder->items, decoder->count, sizeof *decoder->items, tokenizer_config_compare);
    JSON_EACH(json, decoder) {
        const int64_t id = tokenizer_config_id(json);
        struct added_token token;
        result = added_token_parse(json, &token);
        const bool known = result == OK && added_tokens_find(&t->added, token.content, token.size);
        if (result == OK) result = added_tokens_add(t, &token, known ? -1 : id);
        if (result != OK) TRY_TO(result, failed, fail_prefix(result, "added_tokens_decoder.%lld", (long long)id));
    }
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

// ---- opening ----

void tokenizer_free(struct tokenizer **pointer) {
    struct tokenizer *t = *pointer;
    if (!t) return;
    bpe_release(&t->encoder->bpe);
    pre_tokenizer_release(&t->encoder->pre_tokenizer);
    buf_release(&t->encoder->normalized);
    pthread_mutex_destroy(&t->encoder->lock);
    free(t->encoder);
    vocab_release(&t->vocab);
    free(t->added.tokens);
    regex_free(&t->added.word);
    regex_free(&t->added.space);
    token_list_release(&t->post_processor.single);
    token_list_release(&t->post_processor.pair);
    free(t);
    *pointer = NULL;
}

static struct tokenizer *tokenizer_new(void) {
    struct tokenizer *t;
    NEW(&t, 1);
    NEW(&t->encoder, 1);
    pthread_mutex_init(&t->encoder->lock, NULL);
    return t;
}

// Completes a tokenizer after all its files have been read: marks the special tokens, normalizes the added tokens that
// match normalized text, and notes how the added tokens start.
static status tokenizer_finish(struct tokenizer *t) {
    static const char word[] = "[\\p{L}\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", space[] = "\\s";
    struct added_tokens *a = &t->added;
    struct buf buffer = {0};
    status result;
    for (size_t i = 0; i < a->count; i++) {
        struct added_token *token = &a->tokens[i];
        const char *content = token->content;
        size_t size = token->size;
        assert(token->id >= 0 && (size_t)token->id < t->vocab.size);
        if (token->flags.special) t->vocab.entries[token->id].special = true;
        if (token->flags.normalized)
            TRY_TO(result, done, normalize_text(t->form, content, size, &buffer, &content, &size));
        if (content != token->content) token->content = arena_strndup(&t->vocab.memory, content, size);
        token->size = size;
        a->starts[(unsigned char)*token->content] = true;
    }
    TRY_TO(result, done, regex_new(&a->word, word, sizeof word - 1));
    TRY_TO(result, done, regex_new(&a->space, space, sizeof space - 1));
done:
    buf_release(&buffer);
    return result;
}

status tokenizer_open(struct tokenizer **out, const char *dir) {
    struct arena memory = {0};
    struct tokenizer *t = tokenizer_new();
    struct json *json = NULL;
    status result;
    char *json_path = path_join(&memory, dir, "tokenizer.json"), *vocab_path = path_join(&memory, dir, "vocab.json");
    if (path_exists(json_path)) {
        TRY_TO(result, done, json_parse_file(&json, &memory, json_path));
        result = tokenizer_json_read(t, json);
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "%s", json_path));
    } else if (path_exists(vocab_path)) {
        TRY_TO(result, done, tokenizer_read_vocab_files(t, dir));
    } else {
        TRY_TO(result, done, fail(DATAERR, "%s: no tokenizer.json, and no vocab.json with merges.txt", dir));
    }
    TRY_TO(result, done, tokenizer_read_config(t, dir));
    TRY_TO(result, done, tokenizer_finish(t));
done:
    if (result != OK) tokenizer_free(&t);
    *out = t;
    arena_release(&memory);
    return result;
}

status tokenizer_from_json(struct tokenizer **out, struct json *json) {
    *out = tokenizer_new();
    status result = tokenizer_json_read(*out, json);
    if (result == OK) result = tokenizer_finish(*out);
    if (result != OK) tokenizer_free(out);
    return result;
}
