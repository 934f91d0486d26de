// Asks the page of a run and of a file of groups for any address: routes, conditions, sorts, cursors, spans. Nothing is
// wrong with what it reads, so an address is answered or refused, and is never the reason that something cannot be
// read.
#include "tests/fuzz/page.h"

#include "shared/store/frame_store.h"

static const char frames_key[] = "00112233445566778899aabbccddeeff";

static struct view view;

// Appends a group of two completions; `number` chooses what it lacks and what is odd about it.
static void address_add_group(struct buf *out, int number) {
    static const char *const times[] = {"", ",\"times\":{\"source\":[100.5,101],\"rollout\":[101.5,107,2]}",
                                        ",\"times\":{\"source\":[-1e300,1e300],\"\xE2\x80\xAE\":[5,1]}",
                                        ",\"times\":{\"reward\":[0,0]}"};
    static const char *const rests[] = {
        ",\"rewards\":{\"accuracy\":[1,0],\"format\":[1,1],\"bonus\":[0.5,0],\"total\":[1.5,0]},\"advantages\":[1,-1]",
        ",\"quarantine\":{\"stage\":\"frames\",\"reason\":\"clips/a.mp4: 3 of 16 frames\"}",
        ",\"scores\":{\"accuracy\":[0,0],\"letter\":[null,1]},\"consistency\":{\"verdict\":[1,null],\"judge\":\"j\"}",
        ",\"reference\":{\"version\":1,\"answer_logprob\":[-0.25,null],\"logprobs\":[[-1,-2],null]}"};
    buf_printf(
        out,
        "{\"v\":1,\"id\":\"e0-%06d%s\",\"sample_id\":\"s%d\",\"prompt\":{\"messages\":[{\"role\":\"user\","
        "\"content\":[{\"type\":\"text\",\"text\":\"Which colour? %d\"}]}],\"question\":\"Which?\",\"options\":["
        "\"A red\",\"B blue\"],\"problem_type\":\"multiple choice\",\"solution\":\"<answer>B</answer>\"},"
        "\"requires\":{\"policy\":0,\"reference\":0,\"exact\":1,\"order\":%d},\"completions\":[{\"tokens\":[1,2],"
        "\"logprobs\":[-0.5,-3e38],\"text\":\"<answer>B</answer>\",\"finish\":\"eos\"},{\"text\":\"a\\u0000\"}]",
        number, number % 5 ? "" : "/\\u0007\\\"", number % 7, number, number);
    buf_puts(out, rests[number % 4]);
    buf_puts(out, times[number / 4 % 4]);
    if (number % 3) buf_printf(out, ",\"trained\":{\"step\":%d}", number / 2);
    buf_puts(out, number % 6 ? "}\n"
                             : ",\"media\":[{\"kind\":\"image\",\"key\":\"00112233445566778899aabbccddeeff\","
                               "\"frames\":2,\"height\":2,\"width\":3}]}\n");
}

static void address_write_frames(void) {
    static const uint8_t pixels[2 * 2 * 3 * 3] = {[18] = 255};
    static const double timestamps[2] = {0, 1};
    const struct frames frames = {.video = true,
                                  .count = 2,
                                  .height = 2,
                                  .width = 3,
                                  .seconds_per_grid = 1,
                                  .timestamps = timestamps,
                                  .pixels = pixels};
    struct frame_store *store;
    fuzz_must(frame_store_open(&store, page_directory, 0, false) == OK);
    fuzz_must(frame_store_put(store, frames_key, &frames) == OK);
    frame_store_close(&store);
}

static void address_write_groups(const struct buf *lines, size_t line_count) {
    struct group_store *store;
    const char *at = lines->data;
    fuzz_must(group_store_open(&store, page_directory, false) == OK);
    for (size_t i = 0; i < line_count; i++) {
        const char *end = strchr(at, '\n');
        struct group *group;
        fuzz_must(group_from_json(&group, at, (size_t)(end - at)) == OK);
        const struct group_record record = {.group = group, .section = -1};
        fuzz_must(group_store_save_all(store, &record, 1) == OK);
        group_free(&group);
        at = end + 1;
    }
    group_store_close(&store);
}

// Makes the view of a run and of a file, once.
static void address_open(void) {
    enum { GROUPS = 40, STEPS = 12 };
    static struct view_source sources[] = {{.name = "run", .kind = VIEW_RUN}, {.name = "file", .kind = VIEW_FILE}};
    static char file[sizeof page_directory + 16];
    struct buf text = {0};
    page_make_directory();
    for (int i = 0; i < GROUPS; i++) address_add_group(&text, i);
    page_write("groups.jsonl", true, text.data, text.size);
    address_write_groups(&text, GROUPS);
    address_write_frames();
    buf_clear(&text);
    for (int i = 1; i <= STEPS; i++)
        buf_printf(&text, "{\"step\": %d, \"time\": %d.5, \"groups\": 2, \"reward\": 0.%d, \"kl\": null}\n", i, 100 + i,
                   i);
    page_write("metrics.jsonl", true, text.data, text.size);
    buf_clear(&text);
    buf_puts(&text,
             "{\"time\": 99, \"kind\": \"started\", \"text\": \"started\"}\n"
             "{\"time\": 105, \"kind\": \"restarted\", \"name\": \"rollout-2\", \"text\": \"killed by SIGKILL\"}\n");
    page_write("events.jsonl", true, text.data, text.size);
    page_write("logs/rollout.log", true, "one\ntwo \xFF\n", 10);
    snprintf(file, sizeof file, "%s/groups.jsonl", page_directory);
    sources[0].path = sources[0].run = page_directory;
    sources[1].path = file;
    view = (struct view){.sources = sources, .source_count = 2};
    sources[0].pipeline = page_new_pipeline();
    for (size_t i = 0; i < 2; i++) fuzz_must(view_groups_open(&sources[i]) == OK);
    fuzz_must(sources[0].groups.count == GROUPS && sources[1].groups.count == GROUPS);
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!view.sources) address_open();
    struct arena arena = {0};
    const status result = page_ask(&view, arena_strndup(&arena, (const char *)data, size));
    fuzz_must(result == OK || result == USAGE || result == END);
    arena_release(&arena);
    return 0;
}
