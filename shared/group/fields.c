// The table of fields, functions that look fields up in it, and the reference page that is printed from it.
#include "shared/group/fields.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define AT(type, member) offsetof(struct type, member)
#define COUNT(array)     (sizeof(array) / sizeof *(array))
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
ASSERT_ARRAY(message, parts, part_count);
ASSERT_ARRAY(prompt, messages, message_count);
ASSERT_ARRAY(group, media, media_count);
ASSERT_ARRAY(group, completions, completion_count);
ASSERT_ARRAY(reference, logprobs, logprob_count);

static const struct field part_fields[] = {
    {"type", FIELD_STRING, AT(part, type), true, 0, NULL, "`text`, `image` or `video`"},
    {"text", FIELD_STRING, AT(part, text), false, 0, NULL, "the text of a part of type `text`"},
    {"image", FIELD_STRING, AT(part, image), false, 0, NULL,
     "the path of an image; `file://` is allowed, a relative one is under `media_root`"},
    {"video", FIELD_STRING, AT(part, video), false, 0, NULL, "the path of a clip, as for an image"},
    {"start", FIELD_DOUBLE, AT(part, start), false, 0, NULL, "seconds of the clip from which frames are taken"},
    {"end", FIELD_DOUBLE, AT(part, end), false, 0, NULL, "seconds of the clip up to which frames are taken"},
    {"frame_rate", FIELD_DOUBLE, AT(part, frame_rate), false, 0, NULL,
     "pictures a second: the path of the clip is a directory of pictures, in the order of their names"},
};
static const struct field_table part_table = TABLE(part, 0, part_fields);

static const struct field message_fields[] = {
    {"role", FIELD_STRING, AT(message, role), true, 0, NULL, "`system`, `user` or `assistant`"},
    {"content", FIELD_CONTENT, AT(message, parts), true, 0, &part_table,
     "an array of parts, or a plain string for one part of text"},
};
static const struct field_table message_table = TABLE(message, 0, message_fields);

static const struct field prompt_fields[] = {
    {"messages", FIELD_OBJECTS, AT(prompt, messages), true, 0, &message_table,
     "the messages of the conversation, in order"},
    {"problem_type", FIELD_STRING, AT(prompt, problem_type), false, 0, NULL,
     "`multiple choice`, `numerical`, `OCR`, `free-form` or `regression`"},
    {"solution", FIELD_STRING, AT(prompt, solution), true, 0, NULL, "`<answer>…</answer>`"},
    {"question", FIELD_STRING, AT(prompt, question), false, 0, NULL,
     "the question with its options, without a template's wording"},
    {"options", FIELD_STRINGS, AT(prompt, options), false, 0, NULL,
     "the texts of the options, without a letter of their own"},
    {"category", FIELD_STRING, AT(prompt, category), false, 0, NULL, "the category that an evaluation counts it in"},
    {"level", FIELD_STRING, AT(prompt, level), false, 0, NULL, "the level of the benchmark"},
};
static const struct field_table prompt_table = TABLE(prompt, AT(prompt, present), prompt_fields);

static const struct field requirement_fields[] = {
    {"policy", FIELD_INT, AT(requirement, policy), true, 0, NULL, "lowest version of the policy to sample with"},
    {"reference", FIELD_INT, AT(requirement, reference), true, 0, NULL,
     "lowest version of the reference to score with"},
    {"exact", FIELD_INT, AT(requirement, exact), true, 0, NULL, "1: exactly these versions; 0: these or later ones"},
    {"order", FIELD_INT, AT(requirement, order), true, 0, NULL, "sequence number in the order of issue, from 0"},
};
static const struct field_table requirement_table = TABLE(requirement, AT(requirement, present), requirement_fields);

static const struct field medium_fields[] = {
    {"kind", FIELD_STRING, AT(medium, kind), true, 0, NULL, "`video` or `image`"},
    {"key", FIELD_STRING, AT(medium, key), true, 0, NULL, "key of the frames in frames.lmdb, 32 hex digits"},
    {"frames", FIELD_INT, AT(medium, frames), true, 0, NULL, "number of frames, 1 for an image"},
    {"height", FIELD_INT, AT(medium, height), true, 0, NULL, "height of a frame in pixels"},
    {"width", FIELD_INT, AT(medium, width), true, 0, NULL, "width of a frame in pixels"},
    {"seconds_per_grid", FIELD_DOUBLE, AT(medium, seconds_per_grid), false, 0, NULL,
     "seconds of the clip that a pair of frames represents"},
    {"timestamps", FIELD_DOUBLES, AT(medium, timestamps), false, 0, NULL,
     "for each frame: seconds from the clip's first frame"},
};
static const struct field_table medium_table = TABLE(medium, 0, medium_fields);

static const struct field completion_fields[] = {
    {"tokens", FIELD_INTS, AT(completion, tokens), false, 0, NULL,
     "token ids, with the end-of-sequence token if there was one"},
    {"logprobs", FIELD_FLOATS, AT(completion, logprobs), false, 0, NULL,
     "for each token: its log-probability under the policy that sampled it, at temperature 1"},
    {"versions", FIELD_RUNS, AT(completion, versions), false, 0, NULL,
     "for each token: version of the policy that sampled it"},
    {"text", FIELD_STRING, AT(completion, text), false, 0, NULL, "the text without special tokens"},
    {"finish", FIELD_STRING, AT(completion, finish), false, 0, NULL, "`eos` or `length`"},
};
static const struct field_table completion_table = TABLE(completion, 0, completion_fields);

static const struct field reference_fields[] = {
    {"version", FIELD_INT, AT(reference, version), false, 0, NULL, "version of the reference"},
    {"answer_span", FIELD_SPANS, AT(reference, answer_span), false, 0, NULL,
     "for each completion: [first, one past last] answer token; null without an answer"},
    {"answer_logprob", FIELD_DOUBLES, AT(reference, answer_logprob), false, 0, NULL,
     "for each completion: mean log-probability of the answer tokens; null without an answer"},
    {"answer_probability", FIELD_DOUBLES, AT(reference, answer_probability), false, 0, NULL,
     "for each completion: mean probability of the answer tokens; null without an answer"},
    {"logprobs", FIELD_ROWS, AT(reference, logprobs), false, 0, NULL,
     "for each completion: the log-probability of each token (`logprobs: all`)"},
    {"generated", FIELD_STRINGS, AT(reference, generated), false, 0, NULL,
     "for each completion: the answer that the reference wrote after its reasoning (method refgen)"},
};
static const struct field_table reference_table = TABLE(reference, AT(reference, present), reference_fields);

static const struct field consistency_fields[] = {
    {"probability", FIELD_DOUBLES, AT(consistency, probability), false, 0, NULL,
     "for each completion: its probability by the consistency model (method cora)"},
    {"model", FIELD_STRING, AT(consistency, model), false, 0, NULL, "the hash of the consistency model's weights"},
    {"verdict", FIELD_DOUBLES, AT(consistency, verdict), false, 0, NULL,
     "for each completion: 1 if the judge finds that the reasoning supports the answer, else 0; null: not judged"},
    {"reason", FIELD_STRINGS, AT(consistency, reason), false, 0, NULL, "for each completion: the judge's reason"},
    {"judge", FIELD_STRING, AT(consistency, judge), false, 0, NULL, "the name of the judge"},
};
static const struct field_table consistency_table = TABLE(consistency, AT(consistency, present), consistency_fields);

static const struct field rewards_fields[] = {
    {"accuracy", FIELD_DOUBLES, AT(rewards, accuracy), false, 0, NULL, "the accuracy reward of each completion"},
    {"format", FIELD_DOUBLES, AT(rewards, format), false, 0, NULL, "the format reward of each completion"},
    {"length", FIELD_DOUBLES, AT(rewards, length), false, 0, NULL,
     "the length reward of each completion; absent when it is off"},
    {"bonus", FIELD_DOUBLES, AT(rewards, bonus), false, 0, NULL,
     "the bonus of each completion; absent if the method has none"},
    {"consistency", FIELD_DOUBLES, AT(rewards, consistency), false, 0, NULL,
     "the consistency reward of each completion (method cora)"},
    {"total", FIELD_DOUBLES, AT(rewards, total), false, 0, NULL, "the sum of the rewards of each completion"},
};
static const struct field_table rewards_table = TABLE(rewards, AT(rewards, present), rewards_fields);

static const struct field scores_fields[] = {
    {"accuracy", FIELD_DOUBLES, AT(scores, accuracy), false, 0, NULL,
     "the score of each completion by the benchmark's rule"},
    {"letter", FIELD_DOUBLES, AT(scores, letter), false, 0, NULL,
     "for each completion: 1 if its answer has the right letter, else 0; null if the question has no letters"},
    {"correct", FIELD_DOUBLES, AT(scores, correct), false, 0, NULL, "for each completion: 1 if its accuracy is 1"},
    {"parsed", FIELD_DOUBLES, AT(scores, parsed), false, 0, NULL,
     "for each completion: 1 if its first `<answer>…</answer>` has content"},
    {"formatted", FIELD_DOUBLES, AT(scores, formatted), false, 0, NULL,
     "for each completion: 1 if all of it has the required form"},
};
static const struct field_table scores_table = TABLE(scores, AT(scores, present), scores_fields);

static const struct field trained_fields[] = {
    {"step", FIELD_INT, AT(trained, step), true, 0, NULL, "the optimizer step that trained it"},
};
static const struct field_table trained_table = TABLE(trained, AT(trained, present), trained_fields);

static const struct field quarantine_fields[] = {
    {"stage", FIELD_STRING, AT(quarantine, stage), false, 0, NULL, "the stage that quarantined the group"},
    {"reason", FIELD_STRING, AT(quarantine, reason), false, 0, NULL, "the reason"},
};
static const struct field_table quarantine_table = TABLE(quarantine, AT(quarantine, present), quarantine_fields);

static const struct field group_fields[] = {
    {"v", FIELD_INT, AT(group, v), false, SECTION_PROMPT, NULL, "version of this format: 1"},
    {"id", FIELD_STRING, AT(group, id), true, SECTION_PROMPT, NULL, "epoch and number, such as e0-000017"},
    {"sample_id", FIELD_STRING, AT(group, sample_id), false, SECTION_PROMPT, NULL, "the id in the data set"},
    {"prompt", FIELD_OBJECT, AT(group, prompt), true, SECTION_PROMPT, &prompt_table, "the question"},
    {"requires", FIELD_OBJECT, AT(group, requires), false, SECTION_PROMPT, &requirement_table,
     "the weight versions that it may be sampled and scored with"},
    {"media", FIELD_OBJECTS, AT(group, media), false, SECTION_MEDIA, &medium_table,
     "each image and clip, in the order of the messages"},
    {"prompt_tokens", FIELD_INTS, AT(group, prompt_tokens), false, SECTION_ROLLOUT, NULL,
     "token ids, with one placeholder for each vision token"},
    {"completions", FIELD_OBJECTS, AT(group, completions), false, SECTION_ROLLOUT, &completion_table,
     "the answers of the policy"},
    {"reference", FIELD_OBJECT, AT(group, reference), false, SECTION_REFERENCE, &reference_table,
     "the likelihood of the answers under the reference"},
    {"consistency", FIELD_OBJECT, AT(group, consistency), false, SECTION_CONSISTENCY, &consistency_table,
     "whether the reasoning supports the answers"},
    {"rewards", FIELD_OBJECT, AT(group, rewards), false, SECTION_REWARD, &rewards_table, "the rewards by kind"},
    {"advantages", FIELD_DOUBLES, AT(group, advantages), false, SECTION_REWARD, NULL,
     "the advantage of each completion"},
    {"scores", FIELD_OBJECT, AT(group, scores), false, SECTION_SCORES, &scores_table,
     "the scores of the completions in an evaluation"},
    {"trained", FIELD_OBJECT, AT(group, trained), false, SECTION_TRAINED, &trained_table,
     "present when the group has been trained"},
    {"times", FIELD_JSON, AT(group, times), false, SECTION_TIMES, NULL,
     "for each stage: [in, out] in seconds since 1970"},
    {"quarantine", FIELD_OBJECT, AT(group, quarantine), false, SECTION_QUARANTINE, &quarantine_table,
     "why the group is quarantined"},
};
const struct field_table group_table = TABLE(group, 0, group_fields);

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
    switch (field->type) {
    case FIELD_INT:
        return sizeof(int64_t);
    case FIELD_DOUBLE:
        return sizeof(double);
    case FIELD_OBJECT:
        return field->table->size;
    default:
        return sizeof(struct field_array);
    }
}

bool field_is_ints(const struct field *field) {
    return field->type == FIELD_INTS || field->type == FIELD_RUNS;
}

size_t field_element_size(const struct field *field) {
    switch (field->type) {
    case FIELD_INTS:
    case FIELD_RUNS:
        return sizeof(int64_t);
    case FIELD_FLOATS:
        return sizeof(float);
    case FIELD_DOUBLES:
        return sizeof(double);
    case FIELD_STRINGS:
        return sizeof(struct string);
    case FIELD_SPANS:
        return sizeof(struct span);
    case FIELD_ROWS:
        return sizeof(struct float_array);
    default:
        assert(field->type == FIELD_OBJECTS || field->type == FIELD_CONTENT);
        return field->table->size;
    }
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

static const char *const field_type_names[] = {
    [FIELD_INT] = "integer",
    [FIELD_DOUBLE] = "number",
    [FIELD_STRING] = "string",
    [FIELD_INTS] = "integers",
    [FIELD_RUNS] = "integers",
    [FIELD_FLOATS] = "float32s",
    [FIELD_DOUBLES] = "numbers",
    [FIELD_STRINGS] = "strings",
    [FIELD_SPANS] = "spans",
    [FIELD_ROWS] = "arrays of float32s",
    [FIELD_OBJECT] = "object",
    [FIELD_OBJECTS] = "objects",
    [FIELD_CONTENT] = "objects or string",
    [FIELD_JSON] = "object",
};
static_assert(COUNT(field_type_names) == FIELD_JSON + 1, "one name for each type");

static void fields_print(struct buf *out, const struct field_table *table, const char *prefix) {
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        bool array = field->type == FIELD_OBJECTS || field->type == FIELD_CONTENT;
        buf_printf(out, "| `%s%s%s` | %s | %s | %s |\n", prefix, field->name, array ? "[]" : "",
                   field_type_names[field->type], field->required ? "yes" : "", field->doc);
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
