// Reads any text as a condition, and tests it on a group that has every section.
#include "tests/fuzz/fuzz.h"

#include "tools/groups/condition.h"

static const char group_text[] =
    "{\"id\":\"a\",\"sample_id\":\"7\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":\"?\"}],"
    "\"problem_type\":\"OCR\",\"solution\":\"\",\"options\":[\"a\"]},\"media\":[],\"prompt_tokens\":[1],"
    "\"completions\":[{\"tokens\":[5],\"text\":\"C\",\"finish\":\"eos\"},{\"text\":\"\"}],"
    "\"reference\":{\"version\":1,\"answer_logprob\":[-0.1,null],\"logprobs\":[[-1],null],\"generated\":[\"C\",null]},"
    "\"consistency\":{\"verdict\":[1],\"reason\":[\"x\",null],\"judge\":\"j\"},"
    "\"rewards\":{\"accuracy\":[1,0],\"total\":[]},\"advantages\":[1,-1],\"scores\":{\"letter\":[null,1]},"
    "\"trained\":{\"step\":1},\"quarantine\":{\"reason\":\"r\"}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct condition condition;
    struct group *group = NULL;
    struct buf text = {0}, path = {0};
    buf_append(&text, data, size);
    if (condition_parse(&condition, text.data) == OK) {
        fuzz_must(group_from_json(&group, group_text, sizeof group_text - 1) == OK);
        for (size_t i = 0; i < 3; i++) condition_holds(&condition, group, i);
        condition_path(&condition, &path);
    }
    buf_release(&path);
    buf_release(&text);
    group_free(&group);
    return 0;
}
