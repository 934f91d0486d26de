// The table of messages, and the one encoder and decoder that it drives. A first frame is a msgpack array: the kind's
// number, then its fields in the table's order, no more and no fewer.
#include "shared/wire/message.h"

#include <msgpack.h>
#include <stdbool.h>
#include <string.h>

enum { FRAME_MOST = 16384, TEXT_MOST = 4000, FIELDS_MOST = 28 };

enum field_type { FIELD_END, FIELD_INT, FIELD_REAL, FIELD_TEXT };

struct field {
    enum field_type type;
    const char *name;
    size_t offset;
};

struct row {
    const char *name;
    bool bulk;
    struct field fields[FIELDS_MOST];
};

#define INT(member)                                                                                                    \
    { FIELD_INT, #member, offsetof(struct wire_message, member) }
#define REAL(member)                                                                                                   \
    { FIELD_REAL, #member, offsetof(struct wire_message, member) }
#define TEXT(member)                                                                                                   \
    { FIELD_TEXT, #member, offsetof(struct wire_message, member) }

static const struct row table[MESSAGE_KINDS] = {
    [MESSAGE_HELLO] = {"HELLO",
                       false,
                       {INT(protocol), INT(schema), TEXT(run), TEXT(name), INT(replica), TEXT(machine), TEXT(purpose)}},
    [MESSAGE_WELCOME] = {"WELCOME", false, {TEXT(name), INT(replica), TEXT(machine)}},
    [MESSAGE_REFUSED] = {"REFUSED", false, {TEXT(reason)}},
    [MESSAGE_UNKNOWN_PEER] = {"UNKNOWN_PEER", false, {{0}}},
    [MESSAGE_HEARTBEAT] = {"HEARTBEAT", false, {{0}}},
    [MESSAGE_BYE] = {"BYE", false, {{0}}},
    [MESSAGE_AVAILABLE] = {"AVAILABLE", false, {INT(count)}},
    [MESSAGE_CREDIT] = {"CREDIT", false, {{0}}},
    [MESSAGE_GROUP] = {"GROUP", true, {{0}}},
    [MESSAGE_EMPTY] = {"EMPTY", false, {{0}}},
    [MESSAGE_RUN_INFO] = {"RUN_INFO", false, {INT(count), INT(per_step), INT(seq)}},
    [MESSAGE_POSITION] = {"POSITION", false, {INT(step), INT(seq)}},
    [MESSAGE_TRAINED] = {"TRAINED", false, {INT(seq), TEXT(id), INT(step)}},
    [MESSAGE_QUARANTINED] = {"QUARANTINED", false, {INT(seq), TEXT(id), TEXT(name), TEXT(reason)}},
    [MESSAGE_UNUSED] = {"UNUSED", false, {INT(seq), TEXT(id)}},
    [MESSAGE_REISSUE] = {"REISSUE", false, {INT(seq), TEXT(reason)}},
    [MESSAGE_GET_WEIGHTS] = {"GET_WEIGHTS", false, {INT(reference)}},
    [MESSAGE_WEIGHTS] = {"WEIGHTS",
                         false,
                         {INT(reference), INT(policy), INT(version), INT(hash), INT(size), TEXT(path)}},
    [MESSAGE_FETCH] = {"FETCH", false, {INT(hash), INT(offset), INT(size)}},
    [MESSAGE_CHUNK] = {"CHUNK", true, {INT(hash), INT(offset)}},
    [MESSAGE_ABSENT] = {"ABSENT", false, {TEXT(id)}},
    [MESSAGE_GET] = {"GET", false, {TEXT(id)}},
    [MESSAGE_RECORD] = {"RECORD", true, {TEXT(id)}},
    [MESSAGE_STATUS] = {"STATUS",
                        false,
                        {TEXT(name),
                         INT(replica),
                         TEXT(machine),
                         INT(status.taken),
                         INT(status.done),
                         INT(status.quarantined),
                         INT(status.found),
                         INT(status.dropped),
                         INT(status.held),
                         INT(status.waiting),
                         INT(status.tokens),
                         REAL(status.busy),
                         REAL(status.up),
                         TEXT(status.in_hand),
                         TEXT(status.in_flight),
                         TEXT(status.state),
                         INT(status.total),
                         INT(status.settled),
                         INT(status.step),
                         INT(status.run_quarantined),
                         INT(status.run_unused),
                         REAL(status.reward),
                         REAL(status.accuracy),
                         INT(status.pid)}},
    [MESSAGE_NOTICE] = {"NOTICE", false, {TEXT(name), INT(replica), TEXT(machine), TEXT(reason)}},
    [MESSAGE_END] = {"END", false, {INT(code), TEXT(reason)}},
};

static bool known(enum message_kind kind) {
    return kind > 0 && kind < MESSAGE_KINDS;
}

const char *message_name(enum message_kind kind) {
    return known(kind) ? table[kind].name : "unknown";
}

bool message_has_bulk(enum message_kind kind) {
    return known(kind) && table[kind].bulk;
}

static size_t count_fields(const struct row *row) {
    size_t count = 0;
    while (count < FIELDS_MOST && row->fields[count].type != FIELD_END) count++;
    return count;
}

static status encode_text(msgpack_packer *packer, const struct row *row, const struct field *field, const char *text) {
    if (!text) return fail(BUG, "%s: %s is not set", row->name, field->name);
    size_t size = strnlen(text, TEXT_MOST + 1);
    if (size > TEXT_MOST) return fail(BUG, "%s: %s is too long", row->name, field->name);
    if (msgpack_pack_str(packer, size) || msgpack_pack_str_body(packer, text, size)) return fail_oom();
    return OK;
}

static status encode_field(msgpack_packer *packer, const struct row *row, const struct field *field,
                           const struct wire_message *message) {
    const char *place = (const char *)message + field->offset;
    int failed = 0;
    if (field->type == FIELD_TEXT) return encode_text(packer, row, field, *(const char *const *)(const void *)place);
    if (field->type == FIELD_INT) failed = msgpack_pack_int64(packer, *(const int64_t *)(const void *)place);
    if (field->type == FIELD_REAL) failed = msgpack_pack_double(packer, *(const double *)(const void *)place);
    return failed ? fail_oom() : OK;
}

static int write_bytes(void *data, const char *piece, size_t size) {
    return buf_append(data, piece, size) == OK ? 0 : -1;
}

status message_encode(const struct wire_message *message, struct buf *out) {
    if (!known(message->kind)) return fail(BUG, "no message has kind %d", message->kind);
    const struct row *row = &table[message->kind];
    size_t count = count_fields(row);
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, write_bytes);
    if (msgpack_pack_array(&packer, count + 1) || msgpack_pack_int(&packer, message->kind)) return fail_oom();
    for (size_t i = 0; i < count; i++) TRY(encode_field(&packer, row, &row->fields[i], message));
    return OK;
}

static status decode_text(const char **out, struct arena *arena, const struct row *row, const struct field *field,
                          const msgpack_object *value) {
    if (value->type != MSGPACK_OBJECT_STR) return fail(DATAERR, "%s: %s is not a text", row->name, field->name);
    const msgpack_object_str *text = &value->via.str;
    if (text->size > TEXT_MOST) return fail(DATAERR, "%s: %s is too long", row->name, field->name);
    if (text->size && memchr(text->ptr, 0, text->size))
        return fail(DATAERR, "%s: %s has a NUL", row->name, field->name);
    *out = arena_strndup(arena, text->size ? text->ptr : "", text->size);
    return *out ? OK : fail_oom();
}

static status decode_int(int64_t *out, const struct row *row, const struct field *field, const msgpack_object *value) {
    bool fits = value->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ||
                (value->type == MSGPACK_OBJECT_POSITIVE_INTEGER && value->via.u64 <= INT64_MAX);
    if (!fits) return fail(DATAERR, "%s: %s is not a whole number", row->name, field->name);
    *out = value->via.i64;
    return OK;
}

static status decode_real(double *out, const struct row *row, const struct field *field, const msgpack_object *value) {
    if (value->type != MSGPACK_OBJECT_FLOAT64 && value->type != MSGPACK_OBJECT_FLOAT32)
        return fail(DATAERR, "%s: %s is not a number", row->name, field->name);
    *out = value->via.f64;
    return OK;
}

// A first frame that is being read. Lists and maps are refused by their first byte, before msgpack would make room for
// as many elements as they claim to have.
struct reader {
    const uint8_t *data;
    size_t size, at;
    msgpack_unpacked unpacked;
};

// How many elements the list has that the frame is.
static status read_list(struct reader *reader, size_t *count) {
    uint8_t first = reader->size ? reader->data[0] : 0;
    if (first >> 4 == 9) {
        *count = first & 15;
        reader->at = 1;
    } else if (first == 0xdc && reader->size >= 3) {
        *count = (size_t)reader->data[1] << 8 | reader->data[2];
        reader->at = 3;
    } else {
        return fail(DATAERR, "a message that is no list");
    }
    return *count ? OK : fail(DATAERR, "a message that is an empty list");
}

static status read_value(struct reader *reader, const msgpack_object **value) {
    uint8_t first = reader->at < reader->size ? reader->data[reader->at] : 0xc1;
    if (first == 0xc1 || (first >= 0x80 && first <= 0x9f) || (first >= 0xdc && first <= 0xdf))
        return fail(DATAERR, "a message that is cut off or not flat");
    msgpack_unpack_return read =
        msgpack_unpack_next(&reader->unpacked, (const char *)reader->data, reader->size, &reader->at);
    if (read == MSGPACK_UNPACK_NOMEM_ERROR) return fail_oom();
    if (read != MSGPACK_UNPACK_SUCCESS) return fail(DATAERR, "a message that is not msgpack");
    *value = &reader->unpacked.data;
    return OK;
}

static status decode_field(struct wire_message *message, struct arena *arena, const struct row *row,
                           const struct field *field, const msgpack_object *value) {
    void *place = (char *)message + field->offset;
    if (field->type == FIELD_TEXT) return decode_text(place, arena, row, field, value);
    if (field->type == FIELD_INT) return decode_int(place, row, field, value);
    return decode_real(place, row, field, value);
}

static status decode_fields(struct wire_message *message, struct arena *arena, struct reader *reader) {
    static const msgpack_object nothing = {.type = MSGPACK_OBJECT_NIL};
    const msgpack_object *value = &nothing;
    size_t given = 1;
    TRY(read_list(reader, &given));
    TRY(read_value(reader, &value));
    if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER || value->via.u64 == 0 || value->via.u64 >= MESSAGE_KINDS)
        return fail(DATAERR, "a message of an unknown kind");
    message->kind = (enum message_kind)value->via.u64;
    const struct row *row = &table[message->kind];
    size_t count = count_fields(row);
    if (given - 1 != count) return fail(DATAERR, "%s: %zu fields, it has %zu", row->name, given - 1, count);
    for (size_t i = 0; i < count; i++) {
        TRY(read_value(reader, &value));
        TRY(decode_field(message, arena, row, &row->fields[i], value));
    }
    return reader->at == reader->size ? OK : fail(DATAERR, "%s: something behind its fields", row->name);
}

status message_decode(struct wire_message *message, struct arena *arena, const void *data, size_t size) {
    *message = (struct wire_message){0};
    if (size > FRAME_MOST) return fail(DATAERR, "a message of %zu bytes, %d is the most", size, FRAME_MOST);
    struct reader reader = {.data = data, .size = size};
    msgpack_unpacked_init(&reader.unpacked);
    status result = decode_fields(message, arena, &reader);
    msgpack_unpacked_destroy(&reader.unpacked);
    return result;
}
