#include "shared/config/pipeline.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/draft.h"

void draft_mistake(struct draft *draft, struct place place, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (draft->mistake_count == draft->mistake_room) {
        size_t room = draft->mistake_room * 2 + 16;
        if (RESIZE(&draft->mistakes, room) != OK) {
            draft->short_of_memory = true;
            return;
        }
        draft->mistake_room = room;
    }
    char *copy = arena_strndup(&draft->pipeline->arena, text, strlen(text));
    if (!copy) draft->short_of_memory = true;
    draft->mistakes[draft->mistake_count++] = (struct mistake){place, copy ? copy : ""};
}

// By line, then column; those of the command line first. Equal ones stay in order.
static void sort_mistakes(struct draft *draft) {
    for (size_t i = 1; i < draft->mistake_count; i++) {
        struct mistake moved = draft->mistakes[i];
        size_t j = i;
        for (; j > 0; j--) {
            struct place before = draft->mistakes[j - 1].place;
            if (before.line < moved.place.line) break;
            if (before.line == moved.place.line && before.column <= moved.place.column) break;
            draft->mistakes[j] = draft->mistakes[j - 1];
        }
        draft->mistakes[j] = moved;
    }
}

static status write_mistakes(const struct draft *draft, struct buf *out) {
    for (size_t i = 0; i < draft->mistake_count; i++) {
        struct mistake mistake = draft->mistakes[i];
        if (mistake.place.line) {
            TRY(buf_printf(out, "%s:%zu:%zu: ", draft->path, mistake.place.line, mistake.place.column));
        } else {
            TRY(buf_puts(out, "--set: "));
        }
        TRY(buf_printf(out, "%s\n", mistake.text));
    }
    return OK;
}

// The status for the mistakes found.
static status judge(struct draft *draft, struct buf *mistakes) {
    size_t typed = 0;
    if (draft->short_of_memory) return fail_oom();
    if (draft->mistake_count == 0) return OK;
    sort_mistakes(draft);
    while (typed < draft->mistake_count && draft->mistakes[typed].place.line == 0) typed++;
    TRY(write_mistakes(draft, mistakes));
    status code = typed == draft->mistake_count ? USAGE : DATAERR;
    return fail(code, "%s: %zu mistake%s", draft->path, draft->mistake_count, draft->mistake_count == 1 ? "" : "s");
}

// The folder that the file stands in, absolute.
static status find_folder(struct draft *draft) {
    struct arena *memory = &draft->pipeline->arena;
    const char *slash = strrchr(draft->path, '/');
    char *folder =
        slash ? arena_strndup(memory, draft->path, (size_t)(slash - draft->path) + 1) : arena_strndup(memory, ".", 1);
    char resolved[PATH_MAX];
    if (!folder) return fail_oom();
    if (!realpath(folder, resolved)) return fail(DATAERR, "%s: %s", draft->path, strerror(errno));
    draft->folder = draft->pipeline->folder = arena_strndup(memory, resolved, strlen(resolved));
    if (!getcwd(resolved, sizeof resolved)) return fail(UNAVAILABLE, "the current folder: %s", strerror(errno));
    draft->current = arena_strndup(memory, resolved, strlen(resolved));
    return draft->folder && draft->current ? OK : fail_oom();
}

static status read_document(struct draft *draft, const char *text, size_t size) {
    struct document document;
    struct place place = {1, 1};
    status result = document_read(&document, text, size, &place);
    if (result == OK) {
        draft_parse(draft, &document);
    } else if (result == DATAERR) {
        const char *said = strchr(fail_text(), ' '); // behind the place
        draft_mistake(draft, place, "%s", said ? said + 1 : fail_text());
        result = OK;
    }
    document_release(&document);
    return result;
}

static status read_all(struct draft *draft, const char *text, size_t size, const char *const *sets, size_t count,
                       struct buf *mistakes) {
    TRY(find_folder(draft));
    TRY(read_document(draft, text, size));
    if (draft->mistake_count == 0 || draft->stages_place.line) {
        for (size_t i = 0; i < count; i++) draft_override(draft, sets[i]);
        draft_resolve(draft);
    }
    return judge(draft, mistakes);
}

status pipeline_parse(struct pipeline **out, const char *path, const char *text, size_t size, const char *const *sets,
                      size_t count, struct buf *mistakes) {
    *out = NULL;
    struct draft draft = {.path = path};
    TRY(NEW(&draft.pipeline, 1));
    status result = read_all(&draft, text, size, sets, count, mistakes);
    free(draft.mistakes);
    if (result != OK) {
        pipeline_free(&draft.pipeline);
        return result;
    }
    *out = draft.pipeline;
    return OK;
}

status pipeline_read(struct pipeline **out, const char *path, const char *const *sets, size_t count,
                     struct buf *mistakes) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK) result = pipeline_parse(out, path, content.data, content.size, sets, count, mistakes);
    buf_release(&content);
    return result;
}

void pipeline_free(struct pipeline **pipeline) {
    if (!*pipeline) return;
    struct arena memory = (*pipeline)->arena;
    free(*pipeline);
    arena_release(&memory);
    *pipeline = NULL;
}

const char *pipeline_value(const struct pipeline_stage *stage, const char *key) {
    for (size_t i = 0; i < stage->key_count; i++)
        if (!strcmp(stage->keys[i].name, key)) return stage->keys[i].value;
    return NULL;
}

status pipeline_set(struct pipeline *pipeline, struct pipeline_stage *stage, const char *key, const char *value) {
    char *copy = arena_strndup(&pipeline->arena, value, strlen(value));
    if (!copy) return fail_oom();
    for (size_t i = 0; i < stage->key_count; i++) {
        if (strcmp(stage->keys[i].name, key) != 0) continue;
        stage->keys[i].value = copy;
        return OK;
    }
    struct pipeline_key *wider = arena_alloc(&pipeline->arena, (stage->key_count + 1) * sizeof *wider);
    char *name = arena_strndup(&pipeline->arena, key, strlen(key));
    if (!wider || !name) return fail_oom();
    if (stage->key_count) memcpy(wider, stage->keys, stage->key_count * sizeof *wider);
    wider[stage->key_count++] = (struct pipeline_key){name, copy};
    stage->keys = wider;
    return OK;
}

status pipeline_settings(const struct pipeline_stage *stage, struct settings **out) {
    status result;
    TRY(settings_new_table(out, stage->table));
    for (size_t i = 0; i < stage->key_count; i++)
        TRY_TO(result, fault, settings_set(*out, stage->keys[i].name, stage->keys[i].value));
    return OK;
fault:
    settings_free(out);
    return fail_prefix(result, "%s", stage->name);
}
