#include "shared/text/post_processor.h"

#include <assert.h>
#include <string.h>

enum { POST_PROCESSOR_LIMIT = 256 }; // a longer template is taken for broken

void post_processor_release(struct post_processor *p) {
    token_list_release(&p->single);
    token_list_release(&p->pair);
    *p = (struct post_processor){0};
}

static status post_processor_append(struct token_list *template, int64_t id) {
    if (template->count == POST_PROCESSOR_LIMIT) return fail(DATAERR, "more than %d tokens", POST_PROCESSOR_LIMIT);
    token_list_append(template, id);
    return OK;
}

// Appends the ids that special_tokens gives a special token.
static status post_processor_append_special(struct token_list *template, struct json *specials, const char *name,
                                            const struct vocab *v) {
    struct json *special, *ids;
    TRY(json_get(specials, name, JSON_OBJECT, &special));
    if (!special) return fail(DATAERR, "special_tokens has no %s", name);
    TRY(json_get(special, "ids", JSON_ARRAY, &ids));
    if (!ids) return fail(DATAERR, "special_tokens.%s.ids: missing", name);
    for (size_t i = 0; i < json_count(ids); i++) {
        int64_t id;
        if (!json_int(json_item(ids, i), &id))
            return fail(DATAERR, "special_tokens.%s.ids[%zu]: not an integer", name, i);
        if (id < 0 || (uint64_t)id >= v->size || !v->entries[id].token)
            return fail(DATAERR, "special_tokens.%s.ids[%zu]: %lld is not in the vocabulary", name, i, (long long)id);
        TRY(post_processor_append(template, id));
    }
    return OK;
}

// Appends a piece of a template: {"SpecialToken": {"id": ...}}, or {"Sequence": {"id": "A"}} for the first text.
static status post_processor_read_piece(struct token_list *template, struct json *piece, bool pair,
                                        struct json *specials, const struct vocab *v) {
    struct json *special, *sequence, *id;
    if (!json_is(piece, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_get(piece, "SpecialToken", JSON_OBJECT, &special));
    TRY(json_get(piece, "Sequence", JSON_OBJECT, &sequence));
    if (!special == !sequence) return fail(DATAERR, "neither SpecialToken nor Sequence");
    TRY(json_get(special ? special : sequence, "id", JSON_STRING, &id));
    if (!id) return fail(DATAERR, "id: missing");
    const char *name = json_text(id);
    if (special) return post_processor_append_special(template, specials, name, v);
    if (!strcmp(name, "A")) return post_processor_append(template, POST_PROCESSOR_FIRST);
    if (!strcmp(name, "B") && pair) return post_processor_append(template, POST_PROCESSOR_SECOND);
    return fail(DATAERR, "Sequence: there is no text %s", name);
}

static status post_processor_read_template(struct post_processor *p, struct json *json, const struct vocab *v) {
    static const char *const keys[] = {"single", "pair"};
    struct json *specials, *pieces;
    TRY(json_get(json, "special_tokens", JSON_OBJECT, &specials));
    if (!specials) return fail(DATAERR, "special_tokens: missing");
    for (int pair = 0; pair < 2; pair++) {
        TRY(json_get(json, keys[pair], JSON_ARRAY, &pieces));
        if (!pieces) return fail(DATAERR, "%s: missing", keys[pair]);
        for (size_t i = 0; i < json_count(pieces); i++) {
            status result =
                post_processor_read_piece(pair ? &p->pair : &p->single, json_item(pieces, i), pair, specials, v);
            if (result != OK) return fail_prefix(result, "%s[%zu]", keys[pair], i);
        }
    }
    return OK;
}

status post_processor_read(struct post_processor *p, struct json *json, const struct vocab *v) {
    struct json *type, *list;
    if (!json_is(json, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_get(json, "type", JSON_STRING, &type));
    const char *name = type ? json_text(type) : "without type";
    if (!strcmp(name, "ByteLevel")) return OK; // changes offsets only
    if (!strcmp(name, "TemplateProcessing")) {
        if (p->is_template) return fail(DATAERR, "a second TemplateProcessing is not supported");
        p->is_template = true;
        return post_processor_read_template(p, json, v);
    }
    if (strcmp(name, "Sequence") != 0) return fail(DATAERR, "%s is not supported", name);
    TRY(json_get(json, "processors", JSON_ARRAY, &list));
    if (!list) return fail(DATAERR, "processors: missing");
    for (size_t i = 0; i < json_count(list); i++) {
        status result = post_processor_read(p, json_item(list, i), v);
        if (result != OK) return fail_prefix(result, "processors[%zu]", i);
    }
    return OK;
}

static void post_processor_copy(const struct token_list *from, struct token_list *out) {
    for (size_t i = 0; i < from->count; i++) token_list_append(out, from->data[i]);
}

void post_processor_run(const struct post_processor *p, const struct token_list *first, const struct token_list *second,
                        struct token_list *out) {
    const struct token_list *template = second ? &p->pair : &p->single;
    if (!p->is_template) {
        post_processor_copy(first, out);
        if (second) post_processor_copy(second, out);
        return;
    }
    for (size_t i = 0; i < template->count; i++) {
        const int64_t id = template->data[i];
        const struct token_list *text = id == POST_PROCESSOR_SECOND ? second : first;
        assert(text); // only a template of pairs has the second one
        if (id >= 0)
            token_list_append(out, id);
        else
            post_processor_copy(text, out);
    }
}
