// The table of messages, and the one encoder and decoder that it drives. A first frame is a msgpack array: the kind's
// number, then its fields in the table's order, no more and no fewer.
#include "shared/wire/message.h"

#include <assert.h>
#include <msgpack.h>
#include <stdbool.h>
#include <string.h>

enum { MAX_FRAME = 16384, MAX_STRING = 4000, MAX_FIELDS = 40 };

static_assert(MAX_STRING < MAX_FRAME, "one string fits a frame");
static_assert(sizeof(double) == 8 && sizeof(int64_t) == 8, "numbers are 64 bits wide");
// The numbers of the kinds are part of the protocol.
static_assert(MESSAGE_HEARTBEAT == 5 && MESSAGE_GROUP == 9 && MESSAGE_TRAINED == 15, "kinds keep their numbers");
static_assert(MESSAGE_WEIGHTS == 18 && MESSAGE_RECORD == 23 && MESSAGE_END == 26, "kinds keep their numbers");

// Which side of a conversation sends a kind, and whether it has a second frame.
enum { FROM_CLIENT = 1, FROM_SERVER = 2, FROM_BOTH = FROM_CLIENT | FROM_SERVER, WITH_BULK = 4 };

struct message_row {
    const char *name;
    unsigned flags;
    struct message_field fields[MAX_FIELDS];
};

#define FIELD(type, name, member)                                                                                      \
    { type, name, offsetof(struct wire_message, member) }
#define INT(member)           FIELD(FIELD_INT, #member, member)
#define STRING(member)        FIELD(FIELD_STRING, #member, member)
#define STATUS_INT(member)    FIELD(FIELD_INT, #member, counters.member),
#define STATUS_REAL(member)   FIELD(FIELD_REAL, #member, counters.member),
#define STATUS_STRING(member) FIELD(FIELD_STRING, #member, counters.member),

static const struct message_row message_table[MESSAGE_KINDS] = {
    [MESSAGE_HELLO] = {"HELLO",
                       FROM_CLIENT,
                       {INT(protocol), INT(schema), STRING(run), STRING(name), INT(replica), STRING(machine),
                        STRING(purpose), INT(incarnation)}},
    [MESSAGE_WELCOME] = {"WELCOME", FROM_SERVER, {STRING(name), INT(replica), STRING(machine), INT(incarnation)}},
    [MESSAGE_REFUSED] = {"REFUSED", FROM_BOTH, {STRING(reason)}},
    [MESSAGE_UNKNOWN_PEER] = {"UNKNOWN_PEER", FROM_SERVER, {{0}}},
    [MESSAGE_HEARTBEAT] = {"HEARTBEAT", FROM_BOTH, {{0}}},
    [MESSAGE_BYE] = {"BYE", FROM_BOTH, {{0}}},
    [MESSAGE_AVAILABLE] = {"AVAILABLE", FROM_SERVER, {INT(count), INT(issue), INT(settled)}},
    [MESSAGE_CREDIT] = {"CREDIT", FROM_CLIENT, {{0}}},
    [MESSAGE_GROUP] = {"GROUP", FROM_SERVER | WITH_BULK, {INT(seq), INT(issue), INT(settled)}},
    [MESSAGE_EMPTY] = {"EMPTY", FROM_SERVER, {{0}}},
    [MESSAGE_HAVE] = {"HAVE", FROM_CLIENT, {INT(seq), INT(issue), INT(passed)}},
    [MESSAGE_SYNCED] = {"SYNCED", FROM_CLIENT, {{0}}},
    [MESSAGE_RUN_INFO] = {"RUN_INFO", FROM_SERVER, {INT(count), INT(per_step), INT(max_steps), INT(epoch), INT(seq)}},
    [MESSAGE_POSITION] = {"POSITION", FROM_CLIENT, {INT(step), INT(seq), INT(count)}},
    [MESSAGE_TRAINED] = {"TRAINED", FROM_CLIENT, {INT(seq), STRING(id), INT(step)}},
    [MESSAGE_QUARANTINED] = {"QUARANTINED", FROM_CLIENT, {INT(seq), STRING(id), STRING(name), STRING(reason)}},
    [MESSAGE_UNUSED] = {"UNUSED", FROM_CLIENT, {INT(seq), STRING(id)}},
    [MESSAGE_WEIGHTS] = {"WEIGHTS",
                         FROM_SERVER,
                         {INT(reference), INT(policy), INT(version), INT(hash), INT(size), INT(base), INT(difference),
                          STRING(path)}},
    [MESSAGE_FETCH] = {"FETCH", FROM_CLIENT, {INT(hash), INT(offset), INT(size)}},
    [MESSAGE_CHUNK] = {"CHUNK", FROM_SERVER | WITH_BULK, {INT(hash), INT(offset), INT(total)}},
    [MESSAGE_ABSENT] = {"ABSENT", FROM_SERVER, {STRING(id), INT(hash)}},
    [MESSAGE_GET] = {"GET", FROM_CLIENT, {STRING(id), INT(offset), INT(size)}},
    [MESSAGE_RECORD] = {"RECORD", FROM_SERVER | WITH_BULK, {STRING(id), INT(offset), INT(total)}},
    [MESSAGE_STATUS] = {"STATUS",
                        FROM_BOTH,
                        {STRING(name), INT(replica), STRING(machine),
                         MESSAGE_STATUS_FIELDS(STATUS_INT, STATUS_REAL, STATUS_STRING)}},
    [MESSAGE_NOTICE] = {"NOTICE", FROM_BOTH, {STRING(name), INT(replica), STRING(machine), STRING(reason)}},
    [MESSAGE_END] = {"END", FROM_BOTH, {INT(code), STRING(reason)}},
    [MESSAGE_CANNOT_BORROW] = {"CANNOT_BORROW", FROM_CLIENT, {STRING(path), STRING(reason)}},
    [MESSAGE_RANK_ENDED] = {"RANK_ENDED", FROM_CLIENT, {STRING(name), INT(replica)}},
};

static bool message_known(enum message_kind kind) {
    return kind > 0 && kind < MESSAGE_KINDS;
}

const char *message_name(enum message_kind kind) {
    return message_known(kind) ? message_table[kind].name : "unknown";
}

bool message_has_bulk(enum message_kind kind) {
    return message_known(kind) && (message_table[kind].flags & WITH_BULK);
}

bool message_comes_from(enum message_kind kind, bool client) {
    return message_known(kind) && (message_table[kind].flags & (client ? FROM_CLIENT : FROM_SERVER));
}

const struct message_field *message_fields(enum message_kind kind) {
    return message_known(kind) ? message_table[kind].fields : NULL;
}

static size_t message_field_count(const struct message_row *row) {
    size_t count = 0;
    while (row->fields[count].type != FIELD_END) count++;
    assert(count < MAX_FIELDS);
    return count;
}

status message_encode(const struct wire_message *message, struct buf *out) {
    if (!message_known(message->kind)) return fail(BUG, "unknown message kind %d", message->kind);
    const struct message_row *row = &message_table[message->kind];
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, buf_write);
    msgpack_pack_array(&packer, message_field_count(row) + 1); // the buffer takes everything
    msgpack_pack_int(&packer, (int)message->kind);
    for (const struct message_field *field = row->fields; field->type != FIELD_END; field++) {
        const void *value = (const char *)message + field->offset;
        if (field->type == FIELD_INT) msgpack_pack_int64(&packer, *(const int64_t *)value);
        if (field->type == FIELD_REAL) msgpack_pack_double(&packer, *(const double *)value);
        if (field->type != FIELD_STRING) continue;
        const char *text = *(const char *const *)value;
        if (!text) return fail(BUG, "%s: %s is not set", row->name, field->name);
        size_t size = strnlen(text, MAX_STRING + 1);
        if (size > MAX_STRING) return fail(BUG, "%s: %s is too long", row->name, field->name);
        msgpack_pack_str_with_body(&packer, text, size);
    }
    return OK;
}

// A first frame that is being read. Arrays and maps are refused by their first byte, before msgpack would allocate as
// many elements as they claim to have.
struct message_reader {
    const uint8_t *data;
    size_t size, at;
    msgpack_unpacked unpacked;
};

static status message_read_value(struct message_reader *reader, const msgpack_object **value) {
    assert(reader->at > 0 && reader->at <= reader->size); // behind the array's header
    uint8_t first = reader->at < reader->size ? reader->data[reader->at] : 0xc1;
    if (first == 0xc1 || (first >= 0x80 && first <= 0x9f) || (first >= 0xdc && first <= 0xdf))
        return fail(DATAERR, "the message is truncated or nested");
    msgpack_unpack_return read =
        msgpack_unpack_next(&reader->unpacked, (const char *)reader->data, reader->size, &reader->at);
    if (read == MSGPACK_UNPACK_NOMEM_ERROR) return fail_oom();
    if (read != MSGPACK_UNPACK_SUCCESS) return fail(DATAERR, "the message is not msgpack");
    *value = &reader->unpacked.data;
    return OK;
}

status message_decode(struct wire_message *message, struct arena *arena, const void *data, size_t size) {
    static const msgpack_object nothing = {.type = MSGPACK_OBJECT_NIL};
    struct message_reader reader = {.data = data, .size = size};
    const msgpack_object *value = &nothing;
    const uint8_t first = size ? reader.data[0] : 0;
    size_t given = 0;
    *message = (struct wire_message){0};
    if (size > MAX_FRAME) return fail(DATAERR, "the message has %zu bytes; the maximum is %d", size, MAX_FRAME);
    if (first >> 4 == 9) {
        given = first & 15;
        reader.at = 1;
    } else if (first == 0xdc && size >= 3) {
        given = (size_t)reader.data[1] << 8 | reader.data[2];
        reader.at = 3;
    } else {
        return fail(DATAERR, "the message is not an array");
    }
    if (!given) return fail(DATAERR, "the message is an empty array");
    msgpack_unpacked_init(&reader.unpacked);
    status result;
    TRY_TO(result, done, message_read_value(&reader, &value));
    if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER || value->via.u64 == 0 || value->via.u64 >= MESSAGE_KINDS)
        TRY_TO(result, done, fail(DATAERR, "the message is of an unknown kind"));
    message->kind = (enum message_kind)value->via.u64;
    const struct message_row *row = &message_table[message->kind];
    const size_t count = message_field_count(row);
    if (given - 1 != count) result = fail(DATAERR, "%s: %zu fields instead of %zu", row->name, given - 1, count);
    // HELLO of another protocol may have other fields, but the first one is the protocol.
    if (message->kind == MESSAGE_HELLO && given - 1 != count && given > 1) {
        TRY_TO(result, done, message_read_value(&reader, &value));
        result = fail(DATAERR, "HELLO: protocol %lld instead of %d",
                      value->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? (long long)value->via.u64 : -1LL, WIRE_PROTOCOL);
    }
    for (size_t i = 0; i < count && result == OK; i++) {
        const struct message_field *field = &row->fields[i];
        void *member = (char *)message + field->offset;
        TRY_TO(result, done, message_read_value(&reader, &value));
        const msgpack_object_str *text = value->type == MSGPACK_OBJECT_STR ? &value->via.str : NULL;
        const bool positive = value->type == MSGPACK_OBJECT_POSITIVE_INTEGER && value->via.u64 <= INT64_MAX;
        const bool real = value->type == MSGPACK_OBJECT_FLOAT64 || value->type == MSGPACK_OBJECT_FLOAT32;
        const char *mistake = NULL;
        if (field->type == FIELD_INT && (positive || value->type == MSGPACK_OBJECT_NEGATIVE_INTEGER))
            *(int64_t *)member = value->via.i64;
        else if (field->type == FIELD_REAL && real)
            *(double *)member = value->via.f64;
        else if (field->type != FIELD_STRING)
            mistake = field->type == FIELD_INT ? "is not an integer" : "is not a number";
        else if (!text)
            mistake = "is not a string";
        else if (text->size > MAX_STRING)
            mistake = "is too long";
        else if (text->size && memchr(text->ptr, 0, text->size))
            mistake = "has a NUL";
        else
            *(const char **)member = arena_strndup(arena, text->size ? text->ptr : "", text->size);
        if (mistake) result = fail(DATAERR, "%s: %s %s", row->name, field->name, mistake);
    }
    if (result == OK && reader.at != size) result = fail(DATAERR, "%s: trailing bytes", row->name);
done:
    msgpack_unpacked_destroy(&reader.unpacked);
    return result;
}

status message_check_range(const struct wire_message *message) {
    if (message->offset >= 0 && message->size > 0 && message->size <= WIRE_PIECE_BYTES) return OK;
    return fail(DATAERR, "%s: %lld bytes at offset %lld", message_name(message->kind), (long long)message->size,
                (long long)message->offset);
}

status message_copy(const struct wire_message *message, struct wire_message *copy, struct arena *arena) {
    struct buf frame = {0};
    status result = message_encode(message, &frame);
    if (result == OK) result = message_decode(copy, arena, frame.data, frame.size);
    buf_release(&frame);
    return result;
}
