// Checks data sets: the three formats, prompt templates, the order of epochs, and the messages for invalid records.
// Of the layout sft, what is learned of a record, with the tokens that transformers 4.51.3 gives for the whole
// conversation behind its last <|im_start|>assistant and newline.
#include <math.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/config/stage_kinds.h"
#include "shared/data/dataset.h"
#include "shared/data/format.h"

#define VIDEO_R1(type, options, solution)                                                                              \
    "{\"problem_id\":7,\"problem\":\"Which?\",\"data_type\":\"video\",\"problem_type\":\"" type                        \
    "\",\"options\":" options ",\"path\":\"./v/a.mkv\",\"solution\":\"" solution "\"}\n"
#define CHOICE VIDEO_R1("multiple choice", "[\"A. x\",\"B. y\"]", "<answer>B</answer>")

#define MEDIA "\"video_source\":\"src\",\"video_basename\":\"v.mp4\",\"current_observation_basename\":\"i.jpg\"}\n"
#define DRAWN                                                                                                          \
    "{\"sample_id\":\"s\",\"question\":\"Next?\",\"answer\":\"right\",\"negative_answers\":[\"w1\",\"w2\",\"w3\","     \
    "\"w4\",\"w5\"],\"task_progress_metadata\":[{\"a\":1}]," MEDIA
#define GIVEN                                                                                                          \
    "{\"question\":\"Next?\",\"choice_a\":\"a\",\"choice_b\":\"b\",\"choice_c\":\"c\",\"choice_d\":\"d\","             \
    "\"golden_choice_idx\":\"C\",\"task_progress_metadata\":[],\"domain\":\"Daily life\",\"task_level\":3," MEDIA
#define GROUP                                                                                                          \
    "{\"id\":\"w-1\",\"prompt\":{\"category\":\"c\",\"options\":[\"A. "                                                \
    "x\"],\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"image\":"                                \
    "\"file://a.png\"},{\"type\":\"text\",\"text\":\"?\"}]}],\"problem_type\":\"OCR\",\"solution\":\"<answer>x"        \
    "</answer>\"},\"completions\":[{\"text\":\"y\",\"finish\":\"eos\"}],\"advantages\":[1],\"trained\":{\"step\":3},"  \
    "\"more\":1.0}\n"

static char *write_file(struct arena *arena, const char *name, const char *content) {
    char *path = path_join(arena, unit_directory(), name);
    assert_int_equal(file_write_atomic(path, content, strlen(content)), OK);
    return path;
}

// Sets "key", "value", ..., NULL.
static void set_options(struct options *options, const char *const *pairs) {
    for (; *pairs; pairs += 2) MUST(options_set(options, pairs[0], pairs[1]));
}

static status open_text(struct dataset **out, const char *format, const char *content, const char *const *more) {
    SCOPED(struct arena, arena_release) arena = {0};
    char *path = write_file(&arena, "data.jsonl", content);
    struct source_options source;
    SCOPED(struct options, options_release) options = {0};
    options_init(&options, &stage_kinds[STAGE_SOURCE].options, &source);
    set_options(&options, (const char *[]){"data", path, "format", format, NULL});
    if (more) set_options(&options, more);
    return dataset_open(out, &source);
}

static struct dataset *opened(const char *format, const char *content, const char *const *more) {
    struct dataset *dataset = NULL;
    MUST(open_text(&dataset, format, content, more));
    return dataset;
}

static struct group *group_at(struct dataset *dataset, size_t index) {
    struct group *group = NULL;
    assert_int_equal(dataset_group(dataset, index, &group), OK);
    return group;
}

static const char *const plain[] = {"template", "none", "shuffle", "false", NULL};

TEST(records_of_video_r1_become_groups) {
    struct dataset *dataset = opened("video-r1", CHOICE VIDEO_R1("free-form", "[]", "<answer>z</answer>"), plain);
    assert_int_equal(dataset_count(dataset), 2);
    SCOPED(struct group *, group_free) first = group_at(dataset, 0), second = group_at(dataset, 1);
    assert_string_equal(first->id.data, "e0-000000");
    assert_string_equal(first->sample_id.data, "7");
    const struct message *message = &first->prompt.messages[0];
    assert_int_equal(message->part_count, 2);
    assert_string_equal(message->parts[0].video.data, "v/a.mkv");
    assert_string_equal(message->parts[1].text.data, "Which?Options:\nA. x\nB. y\n");
    assert_string_equal(first->prompt.solution.data, "<answer>B</answer>");
    assert_string_equal(second->prompt.messages[0].parts[1].text.data, "Which?");
    dataset_free(&dataset);
    assert_null(dataset);
}

static void assert_options(const struct group *group, const char *const *wanted) {
    const struct string_array *options = &group->prompt.options;
    size_t count = 0;
    for (; wanted[count]; count++) {
        assert_in_range(count, 0, options->count - 1);
        assert_string_equal(options->data[count].data, wanted[count]);
    }
    assert_int_equal(options->count, count);
}

TEST(options_are_told_from_the_letters_before_them) {
    static const struct {
        const char *given, *bare[5];
    } cases[] = {
        {"[\"A. x\",\"B. y\"]", {"x", "y"}},
        {"[\"(A) x\",\"[B] y\",\"C: z\",\"D . B. \"]", {"x", "y", "z", "B."}},
        {"[\"A) A knife\",\"B.  A. x\"]", {"A knife", "A. x"}},
        {"[\"A x\",\"B y\"]", {"x", "y"}},
        {"[\"A.1\",\"B.2\"]", {"1", "2"}},
        {"[\"A knife\",\"A spoon\"]", {"A knife", "A spoon"}},
        {"[\"A.M.\",\"P.M.\"]", {"A.M.", "P.M."}},
        {"[\"A\",\"B.\",\"C. 3\"]", {"A", "B.", "3"}},
        {"[\"B. x\",\"A. y\",\"AC. z\"]", {"B. x", "A. y", "AC. z"}},
        {"[\"A. x\",\"none\",\"A\xcc\x81. x\",\"\"]", {"x", "none", "A\xcc\x81. x", ""}},
        {"[\"A knife\"]", {"A knife"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char record[512];
        snprintf(record, sizeof record, VIDEO_R1("multiple choice", "%s", "<answer>A</answer>"), cases[i].given);
        SCOPED(struct dataset *, dataset_free) dataset = opened("video-r1", record, plain);
        SCOPED(struct group *, group_free) group = group_at(dataset, 0);
        assert_options(group, cases[i].bare);
        assert_string_equal(group->prompt.question.data, group->prompt.messages[0].parts[1].text.data);
        assert_null(group->prompt.category.data);
        assert_null(group->prompt.level.data);
    }
    SCOPED(struct dataset *, dataset_free)
    dataset = opened("video-r1", VIDEO_R1("numerical", "[\"A. 1\"]", "<answer>1</answer>"), NULL);
    SCOPED(struct group *, group_free) group = group_at(dataset, 0);
    assert_string_equal(group->prompt.question.data, "Which?");
    assert_null(group->prompt.options.data);
}

// A record of a general video benchmark with the path and the further keys.
#define BENCHMARK(path, more)                                                                                          \
    "{\"problem_id\":1,\"problem\":\"?\",\"data_type\":\"video\",\"problem_type\":\"free-form\","                      \
    "\"options\":[],\"process\":\"\",\"solution\":\"<answer>x</answer>\",\"path\":\"" path "\"" more "}\n"

TEST(a_record_of_a_benchmark_has_its_category) {
    static const struct {
        const char *record, *category;
    } cases[] = {
        {BENCHMARK("./Evaluation/VSI-Bench/a/1.mp4", ",\"original_question_type\":\"room_size\""), "room_size"},
        {BENCHMARK("./Evaluation/VSI_bench/a/1.mp4", ",\"original_question_type\":\"order\""), "order"},
        {BENCHMARK("TempCompass/videos/1.mp4", ",\"original_question_type\":\"yes_no\""), "yes_no"},
        {BENCHMARK("/data/VideoMME/videos/1.mp4", ",\"duration\":\"short\",\"original_question_type\":\"x\""), "short"},
        {BENCHMARK("./Evaluation/VideoMMMU/validation_Art_Theory_12.mp4", ""), "Art_Theory"},
        {BENCHMARK("./Evaluation/VideoMMMU/dev_Art_3", ""), "Art"},
        {BENCHMARK("./Evaluation/VideoMMMU/validation_Art.mp4", ""), NULL},
        {BENCHMARK("./Evaluation/VideoMMMU/Art_3.mp4", ""), NULL},
        {BENCHMARK("./Evaluation/MMVU/videos/Civil_Engineering/0.mp4", ""), "Civil_Engineering"},
        {BENCHMARK("/videos/x/MMVU/videos/Art/0.mp4", ""), "Art"},
        {BENCHMARK("/videos/MMVU/0.mp4", ""), NULL},
        {BENCHMARK("./Evaluation/MMVU/videos/0.mp4", ""), NULL},
        {BENCHMARK("./Evaluation/MMVU/0.mp4", ""), NULL},
        {BENCHMARK("./Evaluation/MVBench/star/1.mp4", ",\"original_question_type\":\"x\""), "action_antonym"},
        {BENCHMARK("./videos/MMVU.mp4", ",\"original_question_type\":\"x\""), NULL},
        {BENCHMARK("./MMVU2/videos/a/0.mp4", ",\"duration\":\"x\""), NULL},
        {BENCHMARK("./VideoMME/0.mp4", ",\"duration\":null"), NULL},
        {BENCHMARK("./VideoMME/0.mp4", ",\"duration\":\"\""), NULL},
        {BENCHMARK("img/2D/0.png", ",\"category\":\"Count\""), "Count"},
        {BENCHMARK("img/2D/0.png", ",\"category\":null"), NULL},
        {BENCHMARK("./Evaluation/MVBench/star/1.mp4", ",\"category\":\"x\""), "action_antonym"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct dataset *, dataset_free) dataset = opened("video-r1", cases[i].record, plain);
        SCOPED(struct group *, group_free) group = group_at(dataset, 0);
        if (!cases[i].category) assert_null(group->prompt.category.data);
        if (cases[i].category) assert_string_equal(group->prompt.category.data, cases[i].category);
        assert_null(group->prompt.level.data);
    }
}

TEST(the_place_in_mvbench_tells_the_task) {
    SCOPED(struct buf, buf_release) data = {0};
    buf_puts(&data, "[");
    for (int i = 0; i < 4001; i++) {
        if (i) buf_puts(&data, ",\n\n");
        buf_puts(&data, BENCHMARK("./Evaluation/MVBench/a/1.mp4", ""));
    }
    buf_puts(&data, "]");
    SCOPED(struct dataset *, dataset_free) dataset = opened("video-r1", data.data, plain);
    static const struct {
        size_t index;
        const char *task;
    } cases[] = {{199, "action_antonym"}, {200, "action_count"}, {3799, "state_change"}, {3999, "unexpected_action"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct group *, group_free) group = group_at(dataset, cases[i].index);
        assert_string_equal(group->prompt.category.data, cases[i].task);
    }
    SCOPED(struct group *, group_free) after = group_at(dataset, 4000);
    assert_null(after->prompt.category.data);
}

TEST(an_unknown_kind_is_one_quarantined_sample) {
    static const char *const paths[] = {",\"path\":\"a.wav\"", ",\"path\":\"\"", ""}; // or none
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
        char records[1024];
        snprintf(records, sizeof records,
                 CHOICE "{\"problem_id\":8,\"problem\":\"?\",\"data_type\":\"audio\",\"problem_type\":\"OCR\","
                        "\"solution\":\"<answer>x</answer>\"%s}\n" CHOICE,
                 paths[k]);
        SCOPED(struct dataset *, dataset_free) dataset = opened("video-r1", records, plain);
        assert_int_equal(dataset_count(dataset), 3);
        for (size_t i = 0; i < 3; i++) {
            SCOPED(struct group *, group_free) group = group_at(dataset, i);
            assert_int_equal(group->quarantine.present, i == 1);
            assert_int_equal(group->prompt.messages[0].part_count, i == 1 ? 1 : 2);
            if (i != 1) continue;
            assert_string_equal(group->sample_id.data, "8");
            assert_string_equal(group->quarantine.stage.data, "source");
            assert_string_equal(group->quarantine.reason.data, "data_type: 'audio' is not image, video or frame");
            assert_string_equal(group->prompt.problem_type.data, "OCR");
        }
    }
}

// A record of MVBench whose clip is a directory of pictures.
#define FRAME_RECORD(more)                                                                                             \
    "{\"problem\":\"?\",\"data_type\":\"frame\",\"problem_type\":\"free-form\",\"path\":\"./MVBench/tvqa/a.mp4\","     \
    "\"solution\":\"<answer>x</answer>\"" more "}\n"

TEST(records_of_frames_and_of_cut_clips_keep_their_times) {
    struct dataset *dataset =
        opened("video-r1",
               FRAME_RECORD(",\"fps\":3,\"start\":1.5,\"end\":2e1") FRAME_RECORD(",\"fps\":2.5,\"start\":null")
                   BENCHMARK("MVBench/star/b.mp4", ",\"start\":2,\"end\":4,\"fps\":3"),
               plain);
    SCOPED(struct group *, group_free) group = group_at(dataset, 0), whole = group_at(dataset, 1);
    struct group *video = group_at(dataset, 2);
    const struct part *part = group->prompt.messages[0].parts;
    assert_int_equal(part->kind, PART_VIDEO);
    assert_string_equal(part->video.data, "MVBench/tvqa/a");
    assert_true(part->frame_rate == 3 && part->start == 1.5 && part->end == 20);
    assert_string_equal(group->prompt.category.data, "action_antonym");
    part = whole->prompt.messages[0].parts;
    assert_true(part->frame_rate == 2.5 && isnan(part->start) && isnan(part->end));
    part = video->prompt.messages[0].parts; // whole by default
    assert_true(isnan(part->frame_rate) && isnan(part->start) && isnan(part->end));
    SCOPED(struct buf, buf_release) json = {0};
    group_to_json(video, &json);
    assert_null(strstr(json.data, "\"start\""));
    group_free(&group);
    group_free(&video);
    uint64_t hash = dataset_hash(dataset);
    dataset_free(&dataset);

    dataset = opened("video-r1", BENCHMARK("MVBench/star/b.mp4", ",\"start\":2,\"end\":4.5"),
                     (const char *[]){"clip", "cut", NULL});
    video = group_at(dataset, 0);
    part = video->prompt.messages[0].parts;
    assert_true(isnan(part->frame_rate) && part->start == 2 && part->end == 4.5);
    group_free(&video);
    assert_true(dataset_hash(dataset) != hash);
    dataset_free(&dataset);

    dataset = opened("video-r1", FRAME_RECORD(""), (const char *[]){"frame_records", "released", NULL});
    group = group_at(dataset, 0);
    assert_int_equal(group->prompt.messages[0].part_count, 1);
    assert_false(group->quarantine.present);
    dataset_free(&dataset);
}

TEST(given_choices_of_seed_bench_stay) {
    SCOPED(struct dataset *, dataset_free) dataset = opened("seed-bench-r1", GIVEN, plain);
    SCOPED(struct group *, group_free) group = group_at(dataset, 0);
    assert_string_equal(group->sample_id.data, "1");
    assert_int_equal(group->prompt.messages[0].part_count, 2); // no progress, so no video
    assert_string_equal(group->prompt.messages[0].parts[0].image.data, "images/src/i.jpg");
    assert_string_equal(group->prompt.messages[0].parts[1].text.data, "Next?Options:\nA. a\nB. b\nC. c\nD. d\n");
    assert_string_equal(group->prompt.solution.data, "<answer>C</answer>");
    assert_string_equal(group->prompt.problem_type.data, "multiple choice");
    assert_string_equal(group->prompt.question.data, "Next?Options:\nA. a\nB. b\nC. c\nD. d\n");
    assert_options(group, (const char *[]){"a", "b", "c", "d", NULL});
    assert_string_equal(group->prompt.category.data, "Daily life");
    assert_string_equal(group->prompt.level.data, "3");
}

// Writes the options that are drawn to `text`, and checks that the solution is the letter of the right one.
static void assert_drawn(const char *seed, char *text) {
    struct dataset *dataset =
        opened("seed-bench-r1", DRAWN, (const char *[]){"template", "none", "seed", seed, "epochs", "2", NULL});
    SCOPED(struct group *, group_free) group = group_at(dataset, 0), later = group_at(dataset, 1);
    const struct part *parts = group->prompt.messages[0].parts;
    assert_string_equal(parts[0].video.data, "videos/src/v.mp4");
    assert_string_equal(parts[1].image.data, "images/src/i.jpg");
    char right[] = "X. right\n";
    right[0] = group->prompt.solution.data[strlen("<answer>")];
    assert_non_null(strstr(parts[2].text.data, right));
    assert_string_equal(parts[2].text.data, later->prompt.messages[0].parts[2].text.data);
    int wrong = 0;
    for (const char *at = parts[2].text.data; (at = strstr(at, ". w")); at++) wrong++;
    assert_int_equal(wrong, 3);
    strcpy(text, parts[2].text.data);
    dataset_free(&dataset);
}

TEST(choices_of_seed_bench_are_drawn_by_the_seed) {
    char first[256], same[256], other[256];
    int different = 0;
    assert_drawn("1", first);
    assert_drawn("1", same);
    assert_string_equal(first, same);
    for (int seed = 2; seed < 12; seed++) {
        char name[12];
        snprintf(name, sizeof name, "%d", seed);
        assert_drawn(name, other);
        different += strcmp(first, other) != 0;
    }
    assert_in_range(different, 7, 10);
}

TEST(groups_keep_the_sections_that_they_are_given) {
    SCOPED(struct dataset *, dataset_free)
    dataset = opened("caravan", GROUP, (const char *[]){"media_root", unit_directory(), NULL});
    SCOPED(struct group *, group_free) group = group_at(dataset, 0);
    char path[256];
    snprintf(path, sizeof path, "file://%s/a.png", unit_directory());
    assert_string_equal(group->sample_id.data, "w-1");
    assert_string_equal(group->id.data, "e0-000000");
    assert_string_equal(group->prompt.messages[0].parts[0].image.data, path);
    assert_int_equal(group->completion_count, 1);
    assert_string_equal(group->prompt.category.data, "c");
    assert_options(group, (const char *[]){"A. x", NULL});
    assert_int_equal(group->advantages.count, 1);
    assert_false(group->trained.present);
    assert_string_equal(group->unknown.first->json.data, "1.0");
}

TEST(a_sample_may_have_a_number_as_its_id) {
    static const char *const ids[] = {"\"sample_id\":7", "\"id\":7", "\"id\":8,\"sample_id\":7"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char record[512];
        snprintf(record, sizeof record, "{%s,%s", ids[i], strstr(GROUP, "\"prompt\":"));
        SCOPED(struct dataset *, dataset_free) dataset = opened("caravan", record, NULL);
        SCOPED(struct group *, group_free) group = group_at(dataset, 0);
        assert_string_equal(group->sample_id.data, "7");
        assert_string_equal(group->id.data, "e0-000000");
    }
}

TEST(absolute_paths_of_media_stay) {
    static const char *const paths[] = {"/a.mp4", "file:///a.mp4", "file://localhost/a.mp4"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char record[512];
        snprintf(record, sizeof record, BENCHMARK("%s", ""), paths[i]);
        SCOPED(struct dataset *, dataset_free)
        dataset = opened("video-r1", record, (const char *[]){"media_root", unit_directory(), NULL});
        SCOPED(struct group *, group_free) group = group_at(dataset, 0);
        assert_string_equal(group->prompt.messages[0].parts[0].video.data, paths[i]);
    }
}

TEST(each_epoch_has_an_order_of_its_own) {
    enum { SAMPLES = 50, EPOCHS = 3 };
    SCOPED(struct buf, buf_release) data = {0};
    for (int i = 0; i < SAMPLES; i++) buf_printf(&data, "{\"problem_id\":%d,%s", i, strstr(CHOICE, "\"problem\":"));
    SCOPED(struct dataset *, dataset_free)
    dataset = opened("video-r1", data.data, (const char *[]){"epochs", "3", NULL});
    assert_int_equal(dataset_count(dataset), SAMPLES * EPOCHS);
    int order[EPOCHS][SAMPLES];
    for (int index = SAMPLES * EPOCHS - 1; index >= 0; index--) {
        SCOPED(struct group *, group_free) group = group_at(dataset, (size_t)index);
        order[index / SAMPLES][index % SAMPLES] = atoi(group->sample_id.data);
    }
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[SAMPLES] = {0}, moved = 0;
        for (int i = 0; i < SAMPLES; i++) {
            seen[order[epoch][i]]++;
            moved += order[epoch][i] != order[(epoch + 1) % EPOCHS][i];
        }
        for (int i = 0; i < SAMPLES; i++) assert_int_equal(seen[i], 1);
        assert_in_range(moved, SAMPLES / 2, SAMPLES);
    }
    SCOPED(struct group *, group_free) group = group_at(dataset, SAMPLES * 2 + 7);
    assert_string_equal(group->id.data, "e2-000007");
}

TEST(arrays_lines_and_limits_are_read) {
    SCOPED(struct dataset *, dataset_free)
    dataset = opened("video-r1", "\xef\xbb\xbf [" CHOICE ",\n\n" CHOICE "\n]\n", plain);
    assert_int_equal(dataset_count(dataset), 2);
    dataset_free(&dataset);
    dataset = opened("video-r1", CHOICE "\n \r\n" CHOICE CHOICE, (const char *[]){"limit", "2", NULL});
    assert_int_equal(dataset_count(dataset), 2);
}

TEST(the_shipped_template_is_the_default) {
    SCOPED(struct buf, buf_release) shipped = {0};
    assert_int_equal(file_read("pipelines/templates/default.txt", &shipped), OK);
    assert_string_equal(shipped.data, prompt_template_default);
    SCOPED(struct dataset *, dataset_free) dataset = opened("video-r1", CHOICE, NULL);
    SCOPED(struct group *, group_free) group = group_at(dataset, 0);
    const char *text = group->prompt.messages[0].parts[1].text.data;
    assert_ptr_equal(strstr(text, "Which?Options:\nA. x\nB. y\n\n"), text);
    assert_non_null(strstr(text, "</answer>. Between <answer> and </answer> write the letter"));
}

static void assert_rendered(const char *whole, enum problem_type type, const char *wanted) {
    struct prompt_template template;
    SCOPED(struct buf, buf_release) out = {0};
    assert_int_equal(prompt_template_parse(&template, "t", string_of(whole)), OK);
    assert_int_equal(prompt_template_render(&template, type, string_of("Q"), &out), OK);
    assert_string_equal(out.data, wanted);
}

TEST(a_template_has_a_part_for_each_kind_of_problem) {
    assert_rendered("a {question} b\n", PROBLEM_OCR, "a Q b");
    assert_rendered("{how}|{question}{question}\n\n[OCR]\n one\ntwo\n\n", PROBLEM_OCR, " one\ntwo|QQ");
    assert_rendered("{question}\r\n[OCR]\r\n one\n[numerical]\n two", PROBLEM_NUMERICAL, "Q two");
    struct prompt_template template;
    assert_int_equal(prompt_template_parse(&template, "t", string_of("x\n")), DATAERR);
    assert_int_equal(prompt_template_parse(&template, "t", string_of("{question}\n[OCR]\n[OCR]\n")), DATAERR);
    SCOPED(struct buf, buf_release) out = {0};
    assert_int_equal(prompt_template_parse(&template, "t", string_of("{question}\n[OCR]\n")), OK);
    assert_int_equal(prompt_template_render(&template, PROBLEM_REGRESSION, string_of("Q"), &out), DATAERR);
}

TEST(the_file_of_a_template_is_text) {
    SCOPED(struct arena, arena_release) arena = {0};
    const char *path = write_file(&arena, "template", "\xef\xbb\xbf{question}\xc3\xa9!\n");
    struct dataset *dataset = opened("video-r1", CHOICE, (const char *[]){"template", path, NULL});
    SCOPED(struct group *, group_free) group = group_at(dataset, 0);
    assert_string_equal(group->prompt.messages[0].parts[1].text.data, "Which?Options:\nA. x\nB. y\n\xc3\xa9!");
    dataset_free(&dataset);
    write_file(&arena, "template", "{question}\xe9");
    assert_int_equal(open_text(&dataset, "video-r1", CHOICE, (const char *[]){"template", path, NULL}), DATAERR);
    assert_non_null(strstr(fail_text(), "template: not UTF-8"));
}

struct mistake {
    const char *format;
    const char *content;
    const char *says;
};

TEST(a_mistake_is_refused_with_its_line) {
    static const struct mistake mistakes[] = {
        {"video-r1", "", "data.jsonl: no samples"},
        {"video-r1", CHOICE "x\n", "data.jsonl:2: not JSON"},
        {"video-r1", "\n\n7\n", "data.jsonl:3: not a JSON object"},
        {"video-r1", "[" CHOICE ",{}", "data.jsonl:2: the array is not closed"},
        {"video-r1", "[" CHOICE ",\n{}\n]", "data.jsonl:3: problem_type: missing"},
        {"video-r1", "[" CHOICE "]x", "data.jsonl:2: text after the array"},
        {"video-r1", "[,]", "data.jsonl:1: an element is missing"},
        {"video-r1", VIDEO_R1("Multiple Choice", "[\"A\"]", "<answer>A</answer>"), "of sample 7"},
        {"video-r1", VIDEO_R1("multiple choice", "[]", "<answer>A</answer>"), "data.jsonl:1: options: empty"},
        {"video-r1", VIDEO_R1("multiple choice", "[1]", "<answer>A</answer>"), "options[0]: not a string"},
        {"video-r1", VIDEO_R1("multiple choice", "null", "<answer>A</answer>"), "options: missing"},
        {"video-r1", VIDEO_R1("regression", "[]", "<answer>-inf</answer>"), "data.jsonl:1: solution: "},
        {"video-r1", VIDEO_R1("OCR", "[]", "A"), "solution: no <answer>...</answer>"},
        {"video-r1", "{\"problem_type\":\"OCR\",\"problem\":\"?\",\"path\":\"a\"}", "data_type: missing"},
        {"video-r1", "{\"problem_type\":\"OCR\",\"problem\":\"?\",\"path\":\"a\",\"data_type\":3}",
         "data_type: not a string"},
        {"video-r1", "{\"problem_type\":\"OCR\",\"problem\":\"?\",\"data_type\":\"image\"}", "path: missing"},
        {"seed-bench-r1", "{\"question\":\"q\"}", "answer: missing"},
        {"seed-bench-r1", "{\"question\":\"q\",\"answer\":\"a\",\"negative_answers\":[\"b\",\"c\"]}",
         "negative_answers: 2"},
        {"seed-bench-r1", "{\"question\":\"q\",\"golden_choice_idx\":\"A\"}", "choice_a: missing"},
        {"seed-bench-r1", "{\"sample_id\":[]}", "sample_id: neither"},
        {"video-r1", FRAME_RECORD(""), "data.jsonl:1: fps: missing"},
        {"video-r1", FRAME_RECORD(",\"fps\":\"3\""), "data.jsonl:1: fps: not a number"},
        {"video-r1", FRAME_RECORD(",\"fps\":3,\"end\":[]"), "data.jsonl:1: end: not a number"},
        {"video-r1", BENCHMARK("VideoMME/1.mp4", ",\"duration\":[]"), "data.jsonl:1: duration: neither"},
        {"caravan", "{\"id\":\"a\"}", "data.jsonl:1: not a group: prompt: missing"},
        {"caravan", "{\"prompt\":{\"messages\":[],\"solution\":\"\",\"problem_type\":\"x\"}}", "of sample 1"},
        {"caravan", "{\"sample_id\":true,\"prompt\":{\"messages\":[],\"solution\":\"\"}}", "not a group: sample_id"},
        {"video-r1", "{}\n{}\n{}\n", "data.jsonl: 3 mistakes in 3 samples"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct dataset *dataset = NULL;
        assert_int_equal(open_text(&dataset, mistakes[i].format, mistakes[i].content, NULL), DATAERR);
        assert_null(dataset);
        if (!strstr(fail_text(), mistakes[i].says)) print_error("%s\n", fail_text());
        assert_non_null(strstr(fail_text(), mistakes[i].says));
    }
}

static struct tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    (void)state;
    return tokenizer_open(&tokenizer, "tests/data/tokenizer/plain") == OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    tokenizer_free(&tokenizer);
    return 0;
}

static status read_record(struct group **out, const char *text, const struct tokenizer *with) {
    const struct format_options options = {.media_root = "/m", .tokenizer = with};
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *record;
    assert_int_equal(json_parse(&record, &arena, text, strlen(text)), OK);
    status result = format_read(format_find("sft"), &options, record, (struct record_place){.line = 9}, out);
    return result;
}

static void assert_learned(const struct group *group, const char *text, const int *tokens, size_t count) {
    assert_int_equal(group->completion_count, 1);
    const struct completion *completion = &group->completions[0];
    assert_string_equal(completion->text.data, text);
    assert_string_equal(completion->finish.data, "eos");
    assert_int_equal(completion->tokens.count, count);
    for (size_t i = 0; i < count; i++) assert_int_equal(completion->tokens.data[i], tokens[i]);
    assert_int_equal(group->advantages.count, 1);
    assert_true(group->advantages.data[0] == 1);
}

TEST(records_of_seed_bench_r1_become_tokens) {
    static const int tokens[] = {27, 297, 29,  40, 83,  299, 220, 127, 102, 158, 222, 99, 198, 198, 82,
                                 78, 272, 297, 29, 198, 27,  296, 29,  33,  272, 296, 29, 422, 198};
    static const char response[] = "<think>It's \xC3\xA9\xE2\x80\xA6\n\nso</think>\n<answer>B</answer>";
    SCOPED(struct group *, group_free) group = NULL;
    assert_int_equal(read_record(&group,
                                 "{\"sample_id\":\"s1\",\"prompt\":[{\"role\":\"system\",\"content\":\"S\"},"
                                 "{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"a.mp4\",\"fps\":2},"
                                 "{\"type\":\"image\",\"image\":\"/b.jpg\"},{\"type\":\"text\",\"text\":\"Which?\"}]}],"
                                 "\"response\":\"<think>It's \\u00e9\\u2026\\n\\nso</think>\\n<answer>B</answer>\"}",
                                 tokenizer),
                     OK);
    assert_learned(group, response, tokens, sizeof tokens / sizeof *tokens);
    assert_string_equal(group->sample_id.data, "s1");
    assert_string_equal(group->prompt.solution.data, "<answer>B</answer>");
    assert_string_equal(group->prompt.problem_type.data, "multiple choice");
    assert_int_equal(group->prompt.message_count, 2);
    const struct message *message = &group->prompt.messages[1];
    assert_int_equal(message->part_count, 3);
    assert_string_equal(message->parts[0].video.data, "/m/a.mp4");
    assert_string_equal(message->parts[1].image.data, "/b.jpg");
    assert_string_equal(message->parts[2].text.data, "Which?");
}

TEST(records_of_video_r1_become_tokens) {
    static const int tokens[] = {27, 297, 29, 64, 272, 297, 29, 198, 27, 296, 29, 19, 17, 272, 296, 29, 422, 198};
    SCOPED(struct group *, group_free) group = NULL;
    assert_int_equal(read_record(&group,
                                 "{\"problem_id\":7,\"problem\":\"Which?\",\"data_type\":\"video\",\"problem_type\":"
                                 "\"numerical\",\"options\":[],\"path\":\"./v/a.mp4\",\"process\":\"<think>a</think>\","
                                 "\"solution\":\"<answer>42</answer>\"}",
                                 tokenizer),
                     OK);
    assert_learned(group, "<think>a</think>\n<answer>42</answer>", tokens, sizeof tokens / sizeof *tokens);
    assert_string_equal(group->sample_id.data, "7");
    assert_string_equal(group->prompt.messages[0].parts[0].video.data, "/m/v/a.mp4");
    assert_string_equal(group->prompt.solution.data, "<answer>42</answer>");
    group_free(&group);
    // A sample that cannot be opened is quarantined as in the layout video-r1, and has nothing to learn.
    assert_int_equal(read_record(&group,
                                 "{\"problem\":\"Which?\",\"data_type\":\"sound\",\"problem_type\":\"numerical\","
                                 "\"path\":\"a\",\"process\":\"p\",\"solution\":\"<answer>42</answer>\"}",
                                 tokenizer),
                     OK);
    assert_true(group->quarantine.present);
    assert_int_equal(group->completion_count, 0);
}

TEST(records_without_id_or_answer_are_read) {
    static const int tokens[] = {33, 198, 422, 198};
    SCOPED(struct group *, group_free) group = NULL;
    // A plain string as content, no id, no answer; the response keeps its own newline.
    static const char odd[] = "{\"prompt\":[{\"role\":\"user\",\"content\":\"Which?\"}],\"response\":\"B\\n\"}";
    assert_int_equal(read_record(&group, odd, tokenizer), OK);
    assert_learned(group, "B\n", tokens, 4);
    assert_string_equal(group->sample_id.data, "9");
    assert_string_equal(group->prompt.solution.data, "");
    group_free(&group);
    assert_int_equal(read_record(&group, odd, NULL), OK);
    assert_null(group->completions[0].tokens.data);
    group_free(&group);
    assert_int_equal(
        read_record(&group,
                    "{\"prompt\":[{\"role\":\"user\",\"content\":[]}],\"response\":\"<answer>A</answer> or "
                    "<answer>B</answer> or <answer>\"}",
                    NULL),
        OK);
    assert_string_equal(group->prompt.solution.data, "");
}

TEST(mistakes_are_named) {
    static const struct {
        const char *record, *said;
    } cases[] = {
        {"{\"prompt\":[]}", "neither response nor process, so that nothing is to be learned"},
        {"{\"response\":\"x\"}", "prompt: missing"},
        {"{\"prompt\":\"x\",\"response\":\"x\"}", "prompt: not an array of messages"},
        {"{\"prompt\":[],\"response\":\"x\"}", "prompt: empty"},
        {"{\"prompt\":[{\"content\":\"x\"}],\"response\":\"x\"}", "not a group: prompt.messages[0].role: missing"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}],\"response\":\"x\"}",
         "not a group: prompt.messages[0].content[0].video: missing"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"response\":\"\"}", "response: empty"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"response\":7}", "response: not a string"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"response\":\"x\",\"sample_id\":[]}",
         "sample_id: neither a string nor a number"},
        {"{\"process\":\"\"}", "process: empty"},
        {"{\"process\":\"x\",\"problem\":\"?\"}", "problem_type: missing"},
        {"{\"process\":\"x\",\"problem\":\"?\",\"problem_type\":\"OCR\",\"data_type\":\"image\",\"path\":\"a\"}",
         "solution: missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct group *group;
        assert_int_equal(read_record(&group, cases[i].record, tokenizer), DATAERR);
        assert_null(group);
        assert_string_equal(fail_text(), cases[i].said);
    }
}

int main(void) {
    return unit_run(open_tokenizer, close_tokenizer);
}
