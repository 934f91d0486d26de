#include "shared/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/text/tokenizer_internal.h"
#include "shared/base/utf8.h"

// What the chat template writes.
static const char *const needed[] = {"<|im_start|>",   "<|im_end|>",    "<|vision_start|>",
                                     "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"};

status token_list_append(struct token_list *list, int64_t id) {
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 256;
        TRY(RESIZE(&list->data, room));
        list->room = room;
    }
    list->data[list->count++] = id;
    return OK;
}

void token_list_release(struct token_list *list) {
    free(list->data);
    *list = (struct token_list){0};
}

void tokenizer_free(struct tokenizer **t) {
    if (!*t) return;
    vocab_release(&(*t)->vocab);
    bpe_release(&(*t)->bpe);
    added_tokens_release(&(*t)->added);
    pre_tokenizer_release(&(*t)->pre_tokenizer);
    buf_release(&(*t)->normal);
    if ((*t)->locked) pthread_mutex_destroy(&(*t)->lock);
    free(*t);
    *t = NULL;
}

// The id that Hugging Face gives to an added token that the vocabulary lacks.
static int64_t next_id(const struct tokenizer *t) {
    int64_t highest = -1, count = (int64_t)t->model_count;
    for (size_t i = 0; i < t->added.count; i++)
        if (t->added.tokens[i].id > highest) highest = t->added.tokens[i].id;
    return highest >= count ? highest + 1 : count;
}

status added_token_declare(struct tokenizer *t, const char *content, size_t size, struct added_token_flags flags,
                           int64_t expected) {
    if (!size) return OK;
    int64_t id = vocab_token_to_id(&t->vocab, content, size);
    bool fresh = id < 0;
    if (fresh) id = next_id(t);
    if (expected >= 0 && expected != id)
        return fail(DATAERR, "token \"%.*s\" should have id %lld but has %lld", (int)size, content, (long long)expected,
                    (long long)id);
    TRY(vocab_add(&t->vocab, content, size, id));
    t->vocab.entries[id].added_only |= fresh;
    return added_tokens_add(&t->added, content, size, (int32_t)id, flags);
}

static status finish(struct tokenizer *t) {
    for (size_t i = 0; i < t->added.count; i++)
        if (t->added.tokens[i].flags.special) t->vocab.entries[t->added.tokens[i].id].special = true;
    return added_tokens_build(&t->added, t->form);
}

static status require_needed(const struct tokenizer *t, const char *folder) {
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!added_tokens_find(&t->added, needed[i], strlen(needed[i])))
            return fail(DATAERR, "%s: the tokenizer lacks the token %s, which the chat template needs", folder,
                        needed[i]);
    return OK;
}

static status new_tokenizer(struct tokenizer **out) {
    TRY(NEW(out, 1));
    if (pthread_mutex_init(&(*out)->lock, NULL)) return fail(UNAVAILABLE, "cannot make a lock");
    (*out)->locked = true;
    return OK;
}

static status load_folder(struct tokenizer *t, const char *folder, struct arena *memory) {
    char *whole = path_join(memory, folder, "tokenizer.json"), *vocab = path_join(memory, folder, "vocab.json");
    if (!whole || !vocab) return fail_oom();
    if (path_exists(whole)) {
        struct json_object *json;
        TRY(json_file(&json, whole));
        status result = load_tokenizer_json(t, json);
        json_object_put(json);
        if (result != OK) return fail_prefix(result, "%s", whole);
    } else if (path_exists(vocab)) {
        TRY(load_vocab_files(t, folder));
    } else {
        return fail(DATAERR, "%s: no tokenizer.json there, nor vocab.json and merges.txt", folder);
    }
    return load_tokenizer_config(t, folder);
}

status tokenizer_open(struct tokenizer **out, const char *folder) {
    *out = NULL;
    struct arena memory = {0};
    struct tokenizer *t = NULL;
    status result;
    TRY_TO(result, done, new_tokenizer(&t));
    TRY_TO(result, done, load_folder(t, folder, &memory));
    TRY_TO(result, done, finish(t));
    TRY_TO(result, done, require_needed(t, folder));
    *out = t;
    t = NULL;
done:
    tokenizer_free(&t);
    arena_release(&memory);
    return result;
}

status tokenizer_from_json(struct tokenizer **out, struct json_object *json) {
    *out = NULL;
    struct tokenizer *t = NULL;
    status result;
    TRY_TO(result, done, new_tokenizer(&t));
    TRY_TO(result, done, load_tokenizer_json(t, json));
    TRY_TO(result, done, finish(t));
    *out = t;
    t = NULL;
done:
    tokenizer_free(&t);
    return result;
}

int64_t tokenizer_token_to_id(const struct tokenizer *t, const char *name) {
    return vocab_token_to_id(&t->vocab, name, strlen(name));
}

const char *tokenizer_piece(const struct tokenizer *t, int64_t id, size_t *size) {
    bool known = id >= 0 && (uint64_t)id < t->vocab.size && t->vocab.entries[id].name;
    *size = known ? t->vocab.entries[id].piece_size : 0;
    return known ? t->vocab.entries[id].piece : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int64_t id) {
    return id >= 0 && (uint64_t)id < t->vocab.size && t->vocab.entries[id].special;
}

int64_t tokenizer_vocab_size(const struct tokenizer *t) {
    return (int64_t)t->vocab.size;
}
