// The table of fields, functions that look fields up in it, and the reference page that is printed from it.
#include "shared/group/fields.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define AT(type, member) offsetof(struct type, member)
#define COUNT(array)     (sizeof(array) / sizeof *(array))
#define OPTIONAL(kind, type, member, doc)                                                                              \
    { #member, FIELD_##kind, AT(type, member), false, 0, NULL, doc }
#define REQUIRED(kind, type, member, doc)                                                                              \
    { #member, FIELD_##kind, AT(type, member), true, 0, NULL, doc }
#define SECTION(section, kind, member, required, table, doc)                                                           \
    { #member, FIELD_##kind, AT(group, member), required, SECTION_##section, table, doc }
#define TABLE(type, present, fields)                                                                                   \
    { #type, sizeof(struct type), present, fields, COUNT(fields) }
#define ASSERT_OBJECT(type)                                                                                            \
    static_assert(offsetof(struct type, unknown) == 0, "an object begins with its unknown fields")
#define ASSERT_ARRAY(type, member, counter)                                                                            \
    static_assert(offsetof(struct type, counter) == offsetof(struct type, member) + sizeof(void *),                    \
                  "an array is {data, count}")

ASSERT_OBJECT(part);
ASSERT_OBJECT(message);
ASSERT_OBJECT(prompt);
ASSERT_OBJECT(requirement);
ASSERT_OBJECT(medium);
ASSERT_OBJECT(completion);
ASSERT_OBJECT(reference);
ASSERT_OBJECT(consistency);
ASSERT_OBJECT(rewards);
ASSERT_OBJECT(scores);
ASSERT_OBJECT(trained);
ASSERT_OBJECT(quarantine);
ASSERT_OBJECT(group);
ASSERT_ARRAY(field_array, data, count);
ASSERT_ARRAY(string, data, size);
ASSERT_ARRAY(int_array, data, count);
ASSERT_ARRAY(float_array, data, count);
ASSERT_ARRAY(double_array, data, count);
ASSERT_ARRAY(string_array, data, count);
ASSERT_ARRAY(span_array, data, count);
ASSERT_ARRAY(stage_times, data, count);
ASSERT_ARRAY(message, parts, part_count);
ASSERT_ARRAY(prompt, messages, message_count);
ASSERT_ARRAY(group, media, media_count);
ASSERT_ARRAY(group, completions, completion_count);
ASSERT_ARRAY(reference, logprobs, logprob_count);

static const struct field part_fields[] = {
    REQUIRED(STRING, part, type, "`text`, `image` or `video`"),
    OPTIONAL(STRING, part, text, "the text of a part of type `text`"),
    OPTIONAL(STRING, part, image, "the path of an image; `file://` is allowed, a relative one is under `media_root`"),
    OPTIONAL(STRING, part, video, "the path of a clip, as for an image"),
    OPTIONAL(DOUBLE, part, start, "seconds of the clip from which frames are taken"),
    OPTIONAL(DOUBLE, part, end, "seconds of the clip up to which frames are taken"),
    OPTIONAL(DOUBLE, part, frame_rate,
             "pictures a second: the path of the clip is a directory of pictures, in the order of their names"),
};
static const struct field_table part_table = TABLE(part, 0, part_fields);

static const struct field message_fields[] = {
    REQUIRED(STRING, message, role, "`system`, `user` or `assistant`"),
    {"content", FIELD_CONTENT, AT(message, parts), true, 0, &part_table,
     "an array of parts, or a plain string for one part of text"},
};
static const struct field_table message_table = TABLE(message, 0, message_fields);

static const struct field prompt_fields[] = {
    {"messages", FIELD_OBJECTS, AT(prompt, messages), true, 0, &message_table,
     "the messages of the conversation, in order"},
    OPTIONAL(STRING, prompt, problem_type, "`multiple choice`, `numerical`, `OCR`, `free-form` or `regression`"),
    REQUIRED(STRING, prompt, solution, "`<answer>…</answer>`"),
    OPTIONAL(STRING, prompt, question, "the question with its options, without a template's wording"),
    OPTIONAL(STRINGS, prompt, options, "the texts of the options, without a letter of their own"),
    OPTIONAL(STRING, prompt, category, "the category that an evaluation counts it in"),
    OPTIONAL(STRING, prompt, level, "the level of the benchmark"),
};
static const struct field_table prompt_table = TABLE(prompt, AT(prompt, present), prompt_fields);

static const struct field requirement_fields[] = {
    REQUIRED(INT, requirement, policy, "lowest version of the policy to sample with"),
    REQUIRED(INT, requirement, reference, "lowest version of the reference to score with"),
    REQUIRED(INT, requirement, exact, "1: exactly these versions; 0: these or later ones"),
    REQUIRED(INT, requirement, order, "sequence number in the order of issue, from 0"),
};
static const struct field_table requirement_table = TABLE(requirement, AT(requirement, present), requirement_fields);

static const struct field medium_fields[] = {
    REQUIRED(STRING, medium, kind, "`video` or `image`"),
    REQUIRED(STRING, medium, key, "key of the frames in frames.lmdb, 32 hex digits"),
    REQUIRED(INT, medium, frames, "number of frames, 1 for an image"),
    REQUIRED(INT, medium, height, "height of a frame in pixels"),
    REQUIRED(INT, medium, width, "width of a frame in pixels"),
    OPTIONAL(DOUBLE, medium, seconds_per_grid, "seconds of the clip that a pair of frames represents"),
    OPTIONAL(DOUBLES, medium, timestamps, "for each frame: seconds from the clip's first frame"),
};
static const struct field_table medium_table = TABLE(medium, 0, medium_fields);

static const struct field completion_fields[] = {
    OPTIONAL(INTS, completion, tokens, "token ids, with the end-of-sequence token if there was one"),
    OPTIONAL(FLOATS, completion, logprobs,
             "for each token: its log-probability under the policy that sampled it, at temperature 1"),
    OPTIONAL(RUNS, completion, versions, "for each token: version of the policy that sampled it"),
    OPTIONAL(STRING, completion, text, "the text without special tokens"),
    OPTIONAL(STRING, completion, finish, "`eos` or `length`"),
};
static const struct field_table completion_table = TABLE(completion, 0, completion_fields);

static const struct field reference_fields[] = {
    OPTIONAL(INT, reference, version, "version of the reference"),
    OPTIONAL(SPANS, reference, answer_span,
             "for each completion: [first, one past last] answer token; null without an answer"),
    OPTIONAL(DOUBLES, reference, answer_logprob,
             "for each completion: mean log-probability of the answer tokens; null without an answer"),
    OPTIONAL(DOUBLES, reference, answer_probability,
             "for each completion: mean probability of the answer tokens; null without an answer"),
    OPTIONAL(ROWS, reference, logprobs, "for each completion: the log-probability of each token (`logprobs: all`)"),
    OPTIONAL(STRINGS, reference, generated,
             "for each completion: the answer that the reference wrote after its reasoning (method refgen)"),
};
static const struct field_table reference_table = TABLE(reference, AT(reference, present), reference_fields);

static const struct field consistency_fields[] = {
    OPTIONAL(DOUBLES, consistency, probability,
             "for each completion: its probability by the consistency model (method cora)"),
    OPTIONAL(STRING, consistency, model, "the hash of the consistency model's weights"),
    OPTIONAL(
        DOUBLES, consistency, verdict,
        "for each completion: 1 if the judge finds that the reasoning supports the answer, else 0; null: not judged"),
    OPTIONAL(STRINGS, consistency, reason, "for each completion: the judge's reason"),
    OPTIONAL(STRING, consistency, judge, "the name of the judge"),
};
static const struct field_table consistency_table = TABLE(consistency, AT(consistency, present), consistency_fields);

static const struct field rewards_fields[] = {
    OPTIONAL(DOUBLES, rewards, accuracy, "the accuracy reward of each completion"),
    OPTIONAL(DOUBLES, rewards, format, "the format reward of each completion"),
    OPTIONAL(DOUBLES, rewards, length, "the length reward of each completion; absent when it is off"),
    OPTIONAL(DOUBLES, rewards, bonus, "the bonus of each completion; absent if the method has none"),
    OPTIONAL(DOUBLES, rewards, consistency, "the consistency reward of each completion (method cora)"),
    OPTIONAL(DOUBLES, rewards, total, "the sum of the rewards of each completion"),
};
static const struct field_table rewards_table = TABLE(rewards, AT(rewards, present), rewards_fields);

static const struct field scores_fields[] = {
    OPTIONAL(DOUBLES, scores, accuracy, "the score of each completion by the benchmark's rule"),
    OPTIONAL(DOUBLES, scores, letter,
             "for each completion: 1 if its answer has the right letter, else 0; null if the question has no letters"),
    OPTIONAL(DOUBLES, scores, correct, "for each completion: 1 if its accuracy is 1"),
    OPTIONAL(DOUBLES, scores, parsed, "for each completion: 1 if its first `<answer>…</answer>` has content"),
    OPTIONAL(DOUBLES, scores, formatted, "for each completion: 1 if all of it has the required form"),
};
static const struct field_table scores_table = TABLE(scores, AT(scores, present), scores_fields);

static const struct field trained_fields[] = {
    REQUIRED(INT, trained, step, "the optimizer step that trained it"),
};
static const struct field_table trained_table = TABLE(trained, AT(trained, present), trained_fields);

static const struct field quarantine_fields[] = {
    OPTIONAL(STRING, quarantine, stage, "the stage that quarantined the group"),
    OPTIONAL(STRING, quarantine, reason, "the reason"),
};
static const struct field_table quarantine_table = TABLE(quarantine, AT(quarantine, present), quarantine_fields);

static const struct field group_fields[] = {
    SECTION(PROMPT, INT, v, false, NULL, "version of this format: 1"),
    SECTION(PROMPT, STRING, id, true, NULL, "epoch and number, such as e0-000017"),
    SECTION(PROMPT, STRING, sample_id, false, NULL, "the id in the data set"),
    SECTION(PROMPT, OBJECT, prompt, true, &prompt_table, "the question"),
    SECTION(PROMPT, OBJECT, requires, false, &requirement_table,
            "the weight versions that it may be sampled and scored with"),
    SECTION(MEDIA, OBJECTS, media, false, &medium_table, "each image and clip, in the order of the messages"),
    SECTION(ROLLOUT, INTS, prompt_tokens, false, NULL, "token ids, with one placeholder for each vision token"),
    SECTION(ROLLOUT, OBJECTS, completions, false, &completion_table, "the answers of the policy"),
    SECTION(REFERENCE, OBJECT, reference, false, &reference_table, "the likelihood of the answers under the reference"),
    SECTION(CONSISTENCY, OBJECT, consistency, false, &consistency_table, "whether the reasoning supports the answers"),
    SECTION(REWARD, OBJECT, rewards, false, &rewards_table, "the rewards by kind"),
    SECTION(REWARD, DOUBLES, advantages, false, NULL, "the advantage of each completion"),
    SECTION(SCORES, OBJECT, scores, false, &scores_table, "the scores of the completions in an evaluation"),
    SECTION(TRAINED, OBJECT, trained, false, &trained_table, "present when the group has been trained"),
    SECTION(TIMES, TIMES, times, false, NULL,
            "for each stage: [in, out] in seconds since 1970, in a run [in, out, replica]"),
    SECTION(QUARANTINE, OBJECT, quarantine, false, &quarantine_table, "why the group is quarantined"),
};
const struct field_table group_table = TABLE(group, 0, group_fields);

// The name of each type in the reference page, the size of a field, and of an element of an array. 0: as its table
// says.
static const struct {
    const char *name;
    size_t size, element_size;
} field_types[] = {
    [FIELD_INT] = {"integer", sizeof(int64_t), 0},
    [FIELD_DOUBLE] = {"number", sizeof(double), 0},
    [FIELD_STRING] = {"string", sizeof(struct string), 0},
    [FIELD_INTS] = {"integers", sizeof(struct field_array), sizeof(int64_t)},
    [FIELD_RUNS] = {"integers", sizeof(struct field_array), sizeof(int64_t)},
    [FIELD_FLOATS] = {"float32s", sizeof(struct field_array), sizeof(float)},
    [FIELD_DOUBLES] = {"numbers", sizeof(struct field_array), sizeof(double)},
    [FIELD_STRINGS] = {"strings", sizeof(struct field_array), sizeof(struct string)},
    [FIELD_SPANS] = {"spans", sizeof(struct field_array), sizeof(struct span)},
    [FIELD_ROWS] = {"arrays of float32s", sizeof(struct field_array), sizeof(struct float_array)},
    [FIELD_OBJECT] = {"object", 0, 0},
    [FIELD_OBJECTS] = {"objects", sizeof(struct field_array), 0},
    [FIELD_CONTENT] = {"objects or string", sizeof(struct field_array), 0},
    [FIELD_TIMES] = {"object", sizeof(struct field_array), sizeof(struct stage_time)},
};
static_assert(COUNT(field_types) == FIELD_TIMES + 1, "a row for each type");

const struct field *field_find(const struct field_table *table, const char *name, size_t size) {
    for (size_t i = 0; i < table->count; i++)
        if (strlen(table->fields[i].name) == size && !memcmp(table->fields[i].name, name, size))
            return &table->fields[i];
    return NULL;
}

bool field_present(const struct field *field, const void *object) {
    const char *at = (const char *)object + field->offset;
    switch (field->type) {
    case FIELD_INT:
        return *(const int64_t *)(const void *)at != ABSENT;
    case FIELD_DOUBLE:
        return isfinite(*(const double *)(const void *)at);
    case FIELD_OBJECT:
        return *(const bool *)(at + field->table->present);
    default: // a string is laid out as an array
        return field_array_load(at).data != NULL;
    }
}

size_t field_size(const struct field *field) {
    return field->type == FIELD_OBJECT ? field->table->size : field_types[field->type].size;
}

size_t field_element_size(const struct field *field) {
    const size_t size = field_types[field->type].element_size;
    assert(size || field->type == FIELD_OBJECTS || field->type == FIELD_CONTENT);
    return size ? size : field->table->size;
}

bool field_element_is_null(const struct field *field, const void *element) {
    if (field->type == FIELD_SPANS) return ((const struct span *)element)->first < 0;
    return (field->type == FIELD_STRINGS || field->type == FIELD_ROWS) && !field_array_load(element).data;
}

struct field_array field_array_load(const void *array) {
    struct field_array loaded;
    memcpy(&loaded, array, sizeof loaded);
    return loaded;
}

void field_array_new(struct arena *arena, void *array, size_t count, size_t element_size) {
    assert(element_size > 0);
    assert(count <= SIZE_MAX / 2 / element_size);
    const struct field_array made = {arena_alloc(arena, (count ? count : 1) * element_size), count};
    memcpy(array, &made, sizeof made);
}

void fields_clear(const struct field_table *table, void *object) {
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        void *at = (char *)object + field->offset;
        if (field->type == FIELD_INT) *(int64_t *)at = ABSENT;
        if (field->type == FIELD_DOUBLE) *(double *)at = NAN;
        if (field->type == FIELD_OBJECT) fields_clear(field->table, at);
    }
    if (table == &group_table) ((struct group *)object)->v = 1;
}

status field_fail(const struct field_path *path, const char *what) {
    char text[256]; // filled from its end, because a path is linked from its last step to its first
    size_t begin = sizeof text - 1;
    text[begin] = 0;
    for (; path && path->parent; path = path->parent) {
        char step[96];
        int length = path->name ? snprintf(step, sizeof step, "%s%.64s", path->parent->parent ? "." : "", path->name)
                                : snprintf(step, sizeof step, "[%zu]", path->index);
        assert(length > 0 && length < (int)sizeof step);
        if ((size_t)length > begin) break;
        begin -= (size_t)length;
        memcpy(text + begin, step, (size_t)length);
    }
    return fail(DATAERR, "not a group: %s%s%s", text + begin, text[begin] ? ": " : "", what);
}

status fields_check(const struct field_table *table, void *object, const struct field_path *path) {
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        if (field->required && !field_present(field, object))
            return field_fail(&(struct field_path){path, field->name, 0}, "missing");
    }
    if (table == &part_table) {
        static const char *const kinds[] = {[PART_TEXT] = "text", [PART_IMAGE] = "image", [PART_VIDEO] = "video"};
        static_assert(COUNT(kinds) == PART_VIDEO + 1, "one name for each kind");
        struct part *part = object;
        const struct string *const contents[] = {
            [PART_TEXT] = &part->text, [PART_IMAGE] = &part->image, [PART_VIDEO] = &part->video};
        int kind = PART_TEXT;
        while (kind <= PART_VIDEO && !string_equals(part->type, kinds[kind])) kind++;
        if (kind > PART_VIDEO) return field_fail(&(struct field_path){path, "type", 0}, "not text, image or video");
        part->kind = (enum part_kind)kind;
        if (!contents[kind]->data) return field_fail(&(struct field_path){path, kinds[kind], 0}, "missing");
    }
    if (table == &completion_table) {
        const struct completion *completion = object;
        if (!completion->text.data && !completion->tokens.data)
            return field_fail(&(struct field_path){path, "text", 0}, "missing");
    }
    if (table == &group_table && ((const struct group *)object)->v != 1)
        return field_fail(&(struct field_path){path, "v", 0}, "not 1");
    return OK;
}

void fields_add_unknown(struct arena *arena, struct unknown_fields *unknown, struct string key, struct string json) {
    struct unknown_field *field = arena_alloc(arena, sizeof *field);
    *field = (struct unknown_field){NULL, key, json};
    if (unknown->last)
        unknown->last->next = field;
    else
        unknown->first = field;
    unknown->last = field;
}

// ---- the reference page ----

static void fields_print(struct buf *out, const struct field_table *table, const char *prefix) {
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        bool array = field->type == FIELD_OBJECTS || field->type == FIELD_CONTENT;
        buf_printf(out, "| `%s%s%s` | %s | %s | %s |\n", prefix, field->name, array ? "[]" : "",
                   field_types[field->type].name, field->required ? "yes" : "", field->doc);
        if (!field->table) continue;
        struct buf inner = {0};
        buf_printf(&inner, "%s%s%s.", prefix, field->name, array ? "[]" : "");
        fields_print(out, field->table, inner.data);
        buf_release(&inner);
    }
}

void group_reference_page(struct buf *out) {
    buf_puts(out, "| key | type | required | what it is |\n|---|---|---|---|\n");
    fields_print(out, &group_table, "");
}
