#include "stages/optim/event_file.h"

#include <endian.h>
#include <math.h>
#include <string.h>

// ---- checksums

uint32_t crc32c(const void *data, size_t size) {
    const uint32_t polynomial = 0x82f63b78; // with its bits reversed
    const unsigned char *bytes = data;
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    return ~crc;
}

// TFRecord stores checksums so that a checksum of data with checksums is not weak.
static uint32_t event_masked_crc(const void *data, size_t size) {
    const uint32_t crc = crc32c(data, size);
    return htole32((crc >> 15 | crc << 17) + 0xa282ead8);
}

// ---- protobuf: a field is its number and wire type, then its value

enum wire_type { WIRE_VARINT = 0, WIRE_DOUBLE = 1, WIRE_BYTES = 2, WIRE_FLOAT = 5 };

static void event_varint(struct buf *out, uint64_t value) {
    unsigned char bytes[10];
    size_t count = 0;
    for (; value >= 0x80; value >>= 7) bytes[count++] = (unsigned char)(value | 0x80);
    bytes[count++] = (unsigned char)value;
    buf_append(out, bytes, count);
}

static void event_key(struct buf *out, unsigned field, enum wire_type type) {
    event_varint(out, field << 3 | type);
}

static void event_fixed64(struct buf *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = htole64(bits);
    buf_append(out, &bits, sizeof bits);
}

static void event_double(struct buf *out, unsigned field, double value) {
    event_key(out, field, WIRE_DOUBLE);
    event_fixed64(out, value);
}

static void event_bytes(struct buf *out, unsigned field, const void *data, size_t size) {
    event_key(out, field, WIRE_BYTES);
    event_varint(out, size);
    buf_append(out, data, size);
}

static void event_doubles(struct buf *out, unsigned field, const double *values, size_t count) {
    event_key(out, field, WIRE_BYTES);
    event_varint(out, count * sizeof *values);
    for (size_t i = 0; i < count; i++) event_fixed64(out, values[i]);
}

// ---- the messages of event.proto and summary.proto, by their field numbers

enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SESSION_LOG_STATUS = 1, SESSION_LOG_START = 1 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_HISTO = 5 };
enum { HISTO_MIN = 1, HISTO_MAX, HISTO_NUM, HISTO_SUM, HISTO_SUM_SQUARES, HISTO_BUCKET_LIMIT, HISTO_BUCKET };

// Appends a record with an Event that has one more field, of bytes.
static void event_write(struct buf *out, double time, int64_t step, unsigned field, const void *data, size_t size) {
    struct buf event = {0};
    event_double(&event, EVENT_WALL_TIME, time);
    event_key(&event, EVENT_STEP, WIRE_VARINT);
    event_varint(&event, (uint64_t)step);
    event_bytes(&event, field, data, size);
    const uint64_t length = htole64(event.size);
    const uint32_t length_crc = event_masked_crc(&length, sizeof length),
                   crc = event_masked_crc(event.data, event.size);
    buf_append(out, &length, sizeof length);
    buf_append(out, &length_crc, sizeof length_crc);
    buf_append(out, event.data, event.size);
    buf_append(out, &crc, sizeof crc);
    buf_release(&event);
}

void event_file_begin(struct buf *out, double time, int64_t step) {
    static const char version[] = "brain.Event:2";
    static const unsigned char started[] = {SESSION_LOG_STATUS << 3 | WIRE_VARINT, SESSION_LOG_START};
    event_write(out, time, 0, EVENT_FILE_VERSION, version, sizeof version - 1);
    event_write(out, time, step, EVENT_SESSION_LOG, started, sizeof started);
}

// Appends HistogramProto's fields: of equal buckets from the least value to the greatest. Returns whether there are
// any.
static bool event_histogram_fields(struct buf *out, const struct event_histogram *histogram) {
    enum { BUCKETS = 30 };
    double limits[BUCKETS] = {0}, counts[BUCKETS] = {0}, low = INFINITY, high = -INFINITY, number = 0, sum = 0,
           squares = 0;
    for (size_t i = 0; i < histogram->count; i++) {
        const double value = histogram->values[i];
        if (!isfinite(value)) continue;
        low = fmin(low, value);
        high = fmax(high, value);
        sum += value;
        squares += value * value;
        number++;
    }
    if (number == 0) return false;
    const int buckets = high > low ? BUCKETS : 1;
    for (int b = 0; b < buckets; b++) limits[b] = b + 1 == buckets ? high : low + (high - low) * (b + 1) / buckets;
    for (size_t i = 0; i < histogram->count; i++) {
        if (!isfinite(histogram->values[i])) continue;
        int b = 0;
        while (b + 1 < buckets && histogram->values[i] > limits[b]) b++;
        counts[b]++;
    }
    event_double(out, HISTO_MIN, low);
    event_double(out, HISTO_MAX, high);
    event_double(out, HISTO_NUM, number);
    event_double(out, HISTO_SUM, sum);
    event_double(out, HISTO_SUM_SQUARES, squares);
    event_doubles(out, HISTO_BUCKET_LIMIT, limits, (size_t)buckets);
    event_doubles(out, HISTO_BUCKET, counts, (size_t)buckets);
    return true;
}

void event_file_step(struct buf *out, double time, int64_t step, const struct event_scalar *scalars,
                     size_t scalar_count, const struct event_histogram *histograms, size_t histogram_count) {
    struct buf summary = {0}, value = {0}, histo = {0};
    for (size_t i = 0; i < scalar_count; i++) {
        const float number = (float)scalars[i].value;
        if (!isfinite(number)) continue;
        buf_clear(&value);
        event_bytes(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        bits = htole32(bits);
        event_key(&value, VALUE_SIMPLE, WIRE_FLOAT);
        buf_append(&value, &bits, sizeof bits);
        event_bytes(&summary, SUMMARY_VALUE, value.data, value.size);
    }
    for (size_t i = 0; i < histogram_count; i++) {
        buf_clear(&value);
        buf_clear(&histo);
        if (!event_histogram_fields(&histo, &histograms[i])) continue;
        event_bytes(&value, VALUE_TAG, histograms[i].tag, strlen(histograms[i].tag));
        event_bytes(&value, VALUE_HISTO, histo.data, histo.size);
        event_bytes(&summary, SUMMARY_VALUE, value.data, value.size);
    }
    event_write(out, time, step, EVENT_SUMMARY, summary.data, summary.size);
    buf_release(&summary);
    buf_release(&value);
    buf_release(&histo);
}
