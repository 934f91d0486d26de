// A group as one line of JSON, both ways, by the table of fields. Known keys are written in the table's order, then the
// unknown ones as they were read. A long array of integers is written as the text it was read from, while it is the
// same array: printing the tokens anew would take most of the time of a stage that only passes them on.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/group/fields.h"

static const struct field group_json_floats = {.type = FIELD_FLOATS};

// ---- reading ----

static status group_json_read_object(struct json_reader *in, struct group *group, const struct field_table *table,
                                     void *object, const struct field_path *path);

static status group_json_read_array(struct json_reader *in, struct group *group, const struct field *field, void *array,
                                    const struct field_path *path);

static status group_json_read_string(struct json_reader *in, struct group *group, struct string *out,
                                     const struct field_path *path) {
    if (json_reader_peek(in) != '"') return field_fail(path, "not a string");
    struct string string;
    TRY(json_reader_string(in, &group->arena, &string));
    arena_string(&group->arena, out, string.data, string.size);
    return OK;
}

// Takes a number of FIELD_INT, FIELD_DOUBLE or FIELD_FLOATS; `what` is the failure of any other value.
static status group_json_read_number(struct json_reader *in, const struct field_path *path, const char *what,
                                     enum field_type type, void *at) {
    const char c = json_reader_peek(in);
    struct json_number number;
    if (c != '-' && (c < '0' || c > '9')) return field_fail(path, what);
    TRY(json_reader_number(in, &number));
    const bool fits = type == FIELD_INT      ? json_number_int(&number, at)
                      : type == FIELD_DOUBLE ? json_number_double(&number, at)
                                             : json_number_float(&number, at);
    return fits ? OK : field_fail(path, what);
}

static const char group_json_not_times[] = "not [in, out] or [in, out, replica]";

// Takes an array of two numbers, with `third` (may be NULL) of two or of three, the last an integer from 1.
static status group_json_read_pair(struct json_reader *in, const struct field_path *path, const char *what,
                                   enum field_type type, void *first, void *second, int64_t *third) {
    bool more;
    if (json_reader_peek(in) != '[') return field_fail(path, what);
    TRY(json_reader_enter(in, '['));
    for (int i = 0; i < 2; i++) {
        TRY(json_reader_next(in, '[', &more));
        if (!more) return field_fail(path, what);
        TRY(group_json_read_number(in, path, what, type, i ? second : first));
    }
    TRY(json_reader_next(in, '[', &more));
    if (!more || !third) return more ? field_fail(path, what) : OK;
    TRY(group_json_read_number(in, path, what, FIELD_INT, third));
    TRY(json_reader_next(in, '[', &more));
    return more || *third < 1 ? field_fail(path, what) : OK;
}

static status group_json_read_element(struct json_reader *in, struct group *group, const struct field *field, void *at,
                                      const struct field_path *path) {
    static const char not_span[] = "not [first, end] or null";
    const bool null = json_reader_peek(in) == 'n';
    struct span *span = at;
    if (null) TRY(json_reader_literal(in, "null"));
    switch (field->type) {
    case FIELD_INTS:
    case FIELD_RUNS:
        if (null) return field_fail(path, "not an integer");
        return group_json_read_number(in, path, "not an integer", FIELD_INT, at);
    case FIELD_FLOATS:
        *(float *)at = NAN;
        return null ? OK : group_json_read_number(in, path, "not a number in the range of a float32", FIELD_FLOATS, at);
    case FIELD_DOUBLES:
        *(double *)at = NAN;
        return null ? OK : group_json_read_number(in, path, "not a number in the range of a double", FIELD_DOUBLE, at);
    case FIELD_STRINGS:
        return null ? OK : group_json_read_string(in, group, at, path);
    case FIELD_SPANS:
        *span = (struct span){-1, -1};
        if (null) return OK;
        TRY(group_json_read_pair(in, path, not_span, FIELD_INT, &span->first, &span->end, NULL));
        return span->first >= 0 && span->end >= span->first ? OK : field_fail(path, not_span);
    case FIELD_ROWS:
        return null ? OK : group_json_read_array(in, group, &group_json_floats, at, path);
    default:
        assert(field->table);
        if (null) return field_fail(path, "not an object");
        return group_json_read_object(in, group, field->table, at, path);
    }
}

static status group_json_read_array(struct json_reader *in, struct group *group, const struct field *field, void *array,
                                    const struct field_path *path) {
    enum { SAMPLE = 256 };
    enum { KEPT_COUNT = 32 }; // elements from which on keeping the text is faster than printing
    const bool ints = field->type == FIELD_INTS || field->type == FIELD_RUNS,
               numbers = ints || field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES;
    const size_t size = field_element_size(field);
    struct field_array elements, wider;
    size_t count = 0, estimate = 8;
    bool more;
    if (json_reader_peek(in) != '[') return field_fail(path, "not an array");
    if (numbers) { // about how many, by the commas in the first SAMPLE bytes
        const char *text = in->text + in->at, *end = memchr(text, ']', in->size - in->at);
        const size_t bytes = end ? (size_t)(end - text) : 0;
        estimate = 1;
        for (size_t i = 0; i < bytes && i < SAMPLE; i++) estimate += text[i] == ',';
        if (bytes > SAMPLE) estimate = (estimate - 1) * bytes / SAMPLE * 9 / 8 + 8;
    }
    field_array_new(&group->arena, &elements, estimate, size);
    TRY(json_reader_enter(in, '['));
    const size_t begin = in->at - 1;
    if (ints) count = json_reader_plain_ints(in, elements.data, elements.count);
    if (field->type == FIELD_FLOATS) count = json_reader_plain_floats(in, elements.data, elements.count);
    const bool plain = ints && count >= KEPT_COUNT && in->text[in->at] == ']';
    for (;; count++) {
        TRY(json_reader_next(in, '[', &more));
        if (!more) break;
        if (count == elements.count) {
            field_array_new(&group->arena, &wider, 2 * count, size);
            memcpy(wider.data, elements.data, count * size);
            elements = wider;
        }
        const struct field_path element = {path, NULL, count};
        TRY(group_json_read_element(in, group, field, (char *)elements.data + count * size, &element));
    }
    elements.count = count;
    memcpy(array, &elements, sizeof elements);
    if (!plain) return OK;
    // The text that the array was read from is what would be printed of it.
    struct array_text *kept = arena_alloc(&group->arena, sizeof *kept);
    *kept = (struct array_text){.data = elements.data, .count = elements.count};
    arena_string(&group->arena, &kept->text, in->text + begin, in->at - begin);
    if (group->last_text)
        group->last_text->next = kept;
    else
        group->texts = kept;
    group->last_text = kept;
    return OK;
}

static status group_json_read_field(struct json_reader *in, struct group *group, const struct field *field,
                                    void *object, const struct field_path *path) {
    const char c = json_reader_peek(in);
    void *at = (char *)object + field->offset;
    struct message *message = object; // of FIELD_CONTENT
    bool more;
    switch (field->type) {
    case FIELD_INT:
        return group_json_read_number(in, path, "not an integer", FIELD_INT, at);
    case FIELD_DOUBLE:
        return group_json_read_number(in, path, "not a number", FIELD_DOUBLE, at);
    case FIELD_STRING:
        return group_json_read_string(in, group, at, path);
    case FIELD_OBJECT:
        memset(at, 0, field->table->size); // the key may be given twice
        TRY(group_json_read_object(in, group, field->table, at, path));
        *(bool *)((char *)at + field->table->present) = true;
        return OK;
    case FIELD_CONTENT: // a plain string becomes one part
        message->plain = c == '"';
        if (!message->plain) return group_json_read_array(in, group, field, at, path);
        field_array_new(&group->arena, at, 1, sizeof *message->parts);
        return group_json_read_string(in, group, &message->parts[0].text, path);
    case FIELD_TIMES:
        if (c != '{') return field_fail(path, "not an object");
        TRY(json_reader_enter(in, '{'));
        GROUP_ARRAY(group, &group->times, 0);
        for (;;) {
            struct stage_time time = {0};
            struct string key;
            TRY(json_reader_next(in, '{', &more));
            if (!more) return OK;
            TRY(json_reader_key(in, &group->arena, &key));
            arena_string(&group->arena, &time.stage, key.data, key.size);
            TRY(group_json_read_pair(in, path, group_json_not_times, FIELD_DOUBLE, &time.in, &time.out, &time.replica));
            group_set_times(group, &time);
        }
    default:
        return group_json_read_array(in, group, field, at, path);
    }
}

static status group_json_read_object(struct json_reader *in, struct group *group, const struct field_table *table,
                                     void *object, const struct field_path *path) {
    bool more;
    if (json_reader_peek(in) != '{') return field_fail(path, "not an object");
    TRY(json_reader_enter(in, '{'));
    fields_clear(table, object);
    for (;;) {
        struct string key;
        TRY(json_reader_next(in, '{', &more));
        if (!more) return fields_check(table, object, path);
        TRY(json_reader_key(in, &group->arena, &key));
        const struct field *field = field_find(table, key.data, key.size);
        const struct field_path member = {path, field ? field->name : NULL, 0};
        if (!field) { // of a key given twice the last value counts
            struct unknown_fields *unknown = object;
            struct unknown_field *same = unknown->first;
            struct string name, text = {0};
            struct buf printed = {0};
            struct arena tree = {0};
            struct json value = {0};
            const status result = json_reader_value(in, &tree, &value);
            if (result == OK) json_print(&printed, &value); // compact
            if (result == OK) arena_string(&group->arena, &text, printed.data, printed.size);
            arena_release(&tree);
            buf_release(&printed);
            TRY(result);
            while (same && (same->key.size != key.size || memcmp(same->key.data, key.data, key.size) != 0))
                same = same->next;
            if (same) {
                same->json = text;
            } else {
                arena_string(&group->arena, &name, key.data, key.size);
                fields_add_unknown(&group->arena, unknown, name, text);
            }
            continue;
        }
        if (json_reader_peek(in) != 'n') {
            TRY(group_json_read_field(in, group, field, object, &member));
            continue;
        }
        // null means that the field is absent, also if the key was given before.
        void *at = (char *)object + field->offset;
        TRY(json_reader_literal(in, "null"));
        memset(at, 0, field_size(field));
        if (field->type == FIELD_INT) *(int64_t *)at = table == &group_table ? 1 : ABSENT; // an absent version is 1
        if (field->type == FIELD_DOUBLE) *(double *)at = NAN;
        if (field->type == FIELD_OBJECT) fields_clear(field->table, at);
    }
}

status group_from_json(struct group **out, const char *json, size_t size) {
    struct json_reader in = {.text = json, .size = size};
    const bool object = json_reader_peek(&in) == '{';
    group_new(out);
    status result = object ? group_json_read_object(&in, *out, &group_table, *out, &(struct field_path){0})
                           : json_reader_value(&in, &(*out)->arena, &(struct json){0});
    if (result == OK) result = json_reader_end(&in);
    if (result == OK && !object) result = field_fail(NULL, "not an object");
    if (result == OK) return OK;
    group_free(out);
    return in.failed ? fail_prefix(result, "not a group") : result;
}

// ---- writing ----

static void group_json_write_object(struct buf *out, const struct field_table *table, const void *object,
                                    const struct array_text **texts);

// *texts is the text of the next array that has one.
static void group_json_write_array(struct buf *out, const struct field *field, const void *array,
                                   const struct array_text **texts) {
    struct field_array loaded = field_array_load(array);
    const size_t size = field_element_size(field);
    const bool ints = field->type == FIELD_INTS || field->type == FIELD_RUNS;
    if (*texts && (*texts)->data == loaded.data && (*texts)->count == loaded.count) {
        buf_append(out, (*texts)->text.data, (*texts)->text.size);
        *texts = (*texts)->next;
        return;
    }
    if (ints || field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES) { // into memory reserved for all at once
        buf_reserve(out, (loaded.count + 1) * (JSON_NUMBER_SIZE + 1));
        char *at = out->data + out->size;
        *at++ = '[';
        for (size_t i = 0; i < loaded.count; i++) {
            if (i) *at++ = ',';
            if (ints)
                at = json_put_int(at, ((const int64_t *)loaded.data)[i]);
            else if (field->type == FIELD_FLOATS)
                at = json_put_number(at, (double)((const float *)loaded.data)[i], true);
            else
                at = json_put_number(at, ((const double *)loaded.data)[i], false);
        }
        *at++ = ']';
        *at = 0;
        out->size = (size_t)(at - out->data);
        assert(out->size < out->capacity);
        return;
    }
    buf_puts(out, "[");
    for (size_t i = 0; i < loaded.count; i++) {
        const void *at = (const char *)loaded.data + i * size;
        const struct string *string = at;
        const struct span *span = at;
        if (i) buf_puts(out, ",");
        if (field_element_is_null(field, at)) {
            buf_puts(out, "null");
            continue;
        }
        switch (field->type) {
        case FIELD_STRINGS:
            json_print_string(out, string->data, string->size);
            break;
        case FIELD_SPANS:
            buf_printf(out, "[%lld,%lld]", (long long)span->first, (long long)span->end);
            break;
        case FIELD_ROWS:
            group_json_write_array(out, &group_json_floats, at, texts);
            break;
        default:
            assert(field->table);
            group_json_write_object(out, field->table, at, texts);
        }
    }
    buf_puts(out, "]");
}

static void group_json_write_key(struct buf *out, bool *first, const char *key, size_t size) {
    buf_puts(out, *first ? "" : ",");
    *first = false;
    json_print_string(out, key, size);
    buf_puts(out, ":");
}

static void group_json_write_object(struct buf *out, const struct field_table *table, const void *object,
                                    const struct array_text **texts) {
    bool first = true;
    buf_puts(out, "{");
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        if (!field_present(field, object)) continue;
        group_json_write_key(out, &first, field->name, strlen(field->name));
        const void *at = (const char *)object + field->offset;
        const struct string *string = at;
        const struct message *message = object; // of FIELD_CONTENT
        const struct stage_times *times = at;
        switch (field->type) {
        case FIELD_INT:
            buf_printf(out, "%lld", (long long)*(const int64_t *)at);
            break;
        case FIELD_DOUBLE:
            json_print_double(out, *(const double *)at);
            break;
        case FIELD_STRING:
            json_print_string(out, string->data, string->size);
            break;
        case FIELD_OBJECT:
            group_json_write_object(out, field->table, at, texts);
            break;
        case FIELD_CONTENT:
            if (message->plain)
                json_print_string(out, message->parts[0].text.data, message->parts[0].text.size);
            else
                group_json_write_array(out, field, at, texts);
            break;
        case FIELD_TIMES:
            buf_puts(out, "{");
            for (size_t k = 0; k < times->count; k++) {
                bool first_time = !k;
                group_json_write_key(out, &first_time, times->data[k].stage.data, times->data[k].stage.size);
                buf_puts(out, "[");
                json_print_double(out, times->data[k].in);
                buf_puts(out, ",");
                json_print_double(out, times->data[k].out);
                if (times->data[k].replica) buf_printf(out, ",%lld", (long long)times->data[k].replica);
                buf_puts(out, "]");
            }
            buf_puts(out, "}");
            break;
        default:
            group_json_write_array(out, field, at, texts);
        }
    }
    for (const struct unknown_field *u = ((const struct unknown_fields *)object)->first; u; u = u->next) {
        group_json_write_key(out, &first, u->key.data, u->key.size);
        buf_append(out, u->json.data, u->json.size);
    }
    buf_puts(out, "}");
}

void group_to_json(const struct group *group, struct buf *out) {
    const struct array_text *texts = group->texts;
    group_json_write_object(out, &group_table, group, &texts);
}
