// The meaning of a pipeline file: every key against its option, every name against what it names. Then each stage
// inherits what it lacks: its own value goes before the file's, and that before the source's.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/pipeline_parse.h"

// A key of the file, of a stage's place or of a machine.
#define KEY(text, kind, meaning, ...)                                                                                  \
    { .name = (text), .type = (kind), .help = (meaning), ##__VA_ARGS__ }

// Keys of the file that no stage has.
static const struct option file_options[] = {
    KEY("name", OPTION_STRING, "of the run (default: the file's)"),
    KEY("give_up_after", OPTION_NUMBER, "minutes after which a machine stops that waits for another one; 0: never",
        .default_value = "0", .high = 1e6),
    KEY("run", OPTION_PATH, "directory of store, checkpoints, metrics and logs", .required = true),
    {0},
};
static const struct option_table file_table = {.options = file_options};

// Keys of any stage or program: how it runs.
static const struct option placement_options[] = {
    KEY("from", OPTION_STRING, "the stage before it (default: the one above)"),
    KEY("replicas", OPTION_INT, "processes that share the work, on each of its machines", .default_value = "1",
        .low = 1, .high = 256),
    KEY("on", OPTION_STRING,
        "the machine that it runs on, or an array of machines and groups of them (default: the first)"),
    KEY("program", OPTION_FILE, "a user's program that filters JSON lines"),
    KEY("timeout", OPTION_NUMBER, "seconds that the program has for a group, its start included; 0: any time",
        .default_value = "0", .high = 1e6),
    {0},
};
static const struct option_table placement_table = {.options = placement_options};

static const struct option machine_options[] = {
    KEY("address", OPTION_STRING, "host name or IP address", .required = true),
    KEY("key", OPTION_STRING, "its public key, from `caravan keygen`"),
    KEY("port", OPTION_INT, "the first of its TCP ports (default: 5600)", .low = 1, .high = 65000),
    KEY("bind", OPTION_STRING, "the address that it listens on (default: all of its addresses)"),
    {0},
};
static const struct option_table machine_table = {.options = machine_options};

void pipeline_keys_markdown(struct buf *out) {
    options_markdown("the file",
                     "keys at the top, beside `stages`, `machines` and `machine_groups`, and those that "
                     "several stages have",
                     file_options, out);
    options_markdown("a stage's place", "keys of any stage and program", placement_options, out);
    options_markdown("a machine", "keys of each of the `machines`", machine_options, out);
}

// The option of that name when several stages have it: then it may stand at the top of the file.
static const struct option *pipeline_validate_find_shared(const char *name) {
    const struct option *found = NULL;
    int stages = 0;
    for (int i = 0; i < STAGE_COUNT; i++) {
        const struct option *option = option_find(&stage_kinds[i].options, name);
        if (!option || option->command_line_only) continue;
        found = option;
        stages++;
    }
    return stages > 1 ? found : NULL;
}

static void pipeline_validate_unknown_key(struct parsed_file *file, const char *owner, const struct key *key,
                                          const struct option_table *table, const struct option_table *more) {
    for (int i = 0; i < STAGE_COUNT; i++) {
        if (!option_find(&stage_kinds[i].options, key->name)) continue;
        diagnostic_add(&file->diagnostics, key->name_at, "%s: no such key: %s; it is a key of %s", owner, key->name,
                       stage_kinds[i].name);
        return;
    }
    struct nearest nearest = nearest_to(key->name);
    nearest_offer_all(&nearest, table);
    if (!nearest.name && more) nearest_offer_all(&nearest, more);
    diagnostic_add(&file->diagnostics, key->name_at, "%s: no such key: %s%s", owner, key->name,
                   nearest_question(&nearest));
}

// The directory that a relative path of the key starts from.
static const char *pipeline_validate_base_dir(const struct parsed_file *file, const struct key *key) {
    return key->value_at.line ? file->pipeline->dir : file->current_dir;
}

#define NOT_REPLACED "~ and variables are not replaced in a file: write the whole path"

const char *pipeline_missing_file(const struct option *option, const char *name, const char *dir, const char *path,
                                  struct arena *arena) {
    if (option->type != OPTION_FILE || choice_index(option->choices, path) >= 0 || option_file_exists(option, path))
        return NULL;
    const char *reason = strerror(errno), *advice = "", *base = path_base_name(path), *value = path;
    const size_t length = strlen(dir);
    if (!strncmp(path, dir, length) && path[length] == '/') value += length + 1; // as it was written
    const char *slash = strchr(value, '/');
    const bool model = !strcmp(name, "model") && *value != '~' && !strchr(value, '$');
    const bool hub = model && slash && slash > value && slash[1] && !strchr(slash + 1, '/') && *value != '.' &&
                     strncmp(value, "models/", strlen("models/")) != 0 && access(path_parent(arena, path), F_OK);
    if (hub)
        advice = arena_printf(arena,
                              "; for the model of that name: hf download %s --local-dir models/%s, then %s: models/%s, "
                              "from this file's directory",
                              value, slash + 1, name, slash + 1);
    else if (model && !strncmp(base, "Qwen2", strlen("Qwen2")) && strstr(base, "-VL-"))
        advice =
            arena_printf(arena, "; to have the released model there: hf download Qwen/%s --local-dir %s", base, path);
    else if (*value == '~' || *value == '$')
        advice = "; " NOT_REPLACED;
    return arena_printf(arena, "%s: %s%s", path, reason, advice);
}

// Checks a key's value. With `options` it goes into their struct. A relative path becomes absolute.
static void pipeline_validate_value(struct parsed_file *file, const char *owner, struct options *options,
                                    struct key *key, const struct option *option) {
    if (!key->value) return; // an array or a mapping, diagnosed already
    struct arena *arena = &file->pipeline->arena;
    const char *dir = pipeline_validate_base_dir(file, key), *path = option_absolute(option, dir, key->value, arena);
    if (option->type == OPTION_PATH && (*key->value == '~' || *key->value == '$')) // a directory ~ would be made
        diagnostic_add(&file->diagnostics, key->value_at, "%s: %s: %s: " NOT_REPLACED, owner, key->name, key->value);
    if ((options ? options_set(options, key->name, path) : option_check(option, path)) != OK) {
        diagnostic_add(&file->diagnostics, key->value_at, "%s: %s", owner, fail_text());
        return;
    }
    const char *missing =
        file->files_may_be_missing ? NULL : pipeline_missing_file(option, key->name, dir, path, arena);
    if (missing)
        diagnostic_add(&file->diagnostics, key->value_at, "%s: %s: %s", owner, key->name, missing);
    else
        key->value = path;
}

const char *pipeline_missing_program(const char *program, struct arena *arena) {
    if (!strchr(program, '/'))
        return arena_printf(arena, "%s is not in PATH (for a file beside this one: ./%s)", program, program);
    return access(program, X_OK) ? arena_printf(arena, "%s: %s", program, strerror(errno)) : NULL;
}

// A program is a path from the file's directory; a bare name is looked for in PATH.
static void pipeline_validate_program(struct parsed_file *file, const struct pipeline_stage *stage, struct key *key) {
    if (!key->value) return;
    struct arena *arena = &file->pipeline->arena;
    const struct option *option = option_find(&placement_table, "program");
    bool bare = !strchr(key->value, '/');
    const char *path = bare ? NULL : option_absolute(option, pipeline_validate_base_dir(file, key), key->value, arena);
    const char *search = bare ? getenv("PATH") : NULL;
    while (search && *search && !path) {
        const size_t length = strcspn(search, ":");
        const char *candidate = path_join(arena, arena_strndup(arena, search, length), key->value);
        if (*key->value && access(candidate, X_OK) == 0) path = candidate;
        search += length + (search[length] == ':');
    }
    if (path) key->value = path;
    const char *missing = file->files_may_be_missing ? NULL : pipeline_missing_program(key->value, arena);
    if (missing) diagnostic_add(&file->diagnostics, key->value_at, "%s: program: %s", stage->name, missing);
}

static void pipeline_validate_stage(struct parsed_file *file, struct pipeline_stage *stage) {
    const struct stage_kind *kind = stage_kind_find(stage->name);
    const struct key *program = key_list_find(&stage->options.given, "program");
    stage->kind = program ? NULL : kind;
    if (stage->kind) { // what was given stays to be checked
        const struct key_list given = stage->options.given;
        options_init(&stage->options, &kind->options, arena_alloc(&file->pipeline->arena, kind->options.size));
        stage->options.given = given;
        stage->options.any_files = true;
    }
    if (!kind && !program) {
        struct nearest nearest = nearest_to(stage->name);
        for (int i = 0; i < STAGE_COUNT; i++) nearest_offer(&nearest, stage_kinds[i].name);
        diagnostic_add(&file->diagnostics, stage->at,
                       nearest.name ? "%s: no such stage%s (a stage of your own needs `program`)"
                                    : "%s: no such stage%s; a stage of your own needs `program`",
                       stage->name, nearest_question(&nearest));
    }
    for (struct key *key = stage->options.given.first; key; key = key->next) {
        const struct option *option = option_find(&placement_table, key->name);
        if (option && !strcmp(key->name, "program")) {
            pipeline_validate_program(file, stage, key);
            continue;
        }
        if (!option && program) { // the program's own
            if (key->value && strchr(key->value, '\n'))
                diagnostic_add(&file->diagnostics, key->value_at,
                               "%s: %s: a line break, which is not passed to a program", stage->name, key->name);
            continue;
        }
        struct options *options = option ? NULL : &stage->options;
        if (!option && kind) option = option_find(&kind->options, key->name);
        if (kind && !option)
            pipeline_validate_unknown_key(file, stage->name, key, &kind->options, &placement_table);
        else if (option && option->command_line_only)
            diagnostic_add(&file->diagnostics, key->name_at, "%s: %s: allowed on the command line only", stage->name,
                           key->name);
        else if (option)
            pipeline_validate_value(file, stage->name, options, key, option);
    }
    if (program && kind == &stage_kinds[STAGE_SOURCE]) // it would read no groups, and wait for some
        diagnostic_add(&file->diagnostics, program->name_at,
                       "%s: program: only for stages behind it; write the groups to a file, and give it as `data` with "
                       "`format: caravan`",
                       stage->name);
    bool plain = true; // its name may stand in those of files
    for (const char *at = stage->name; *at; at++) plain &= (unsigned char)*at > ' ' && *at != '/' && *at != 0x7F;
    if (!plain)
        diagnostic_add(&file->diagnostics, stage->at, "%s: a stage's name has no spaces and no '/'", stage->name);
    // SUPERVISOR_NAME, and the names of its files: caravan-1, caravan-2 ...
    const bool numbered =
        !strncmp(stage->name, "caravan-", 8) && !stage->name[8 + strspn(stage->name + 8, "0123456789")];
    if (!strcmp(stage->name, "caravan") || numbered)
        diagnostic_add(&file->diagnostics, stage->at, "%s: the name of the program itself, not of a stage",
                       stage->name);
    if (strlen(stage->name) > PIPELINE_MAX_STAGE)
        diagnostic_add(&file->diagnostics, stage->at, "%s: a stage's name has at most %d bytes", stage->name,
                       PIPELINE_MAX_STAGE);
    for (struct pipeline_stage *other = file->pipeline->stages; other < stage; other++)
        if (!strcmp(other->name, stage->name))
            diagnostic_add(&file->diagnostics, stage->at, "%s: a second stage with this name; the first is in line %zu",
                           stage->name, other->at.line);
    const struct key *replicas = key_list_find(&stage->options.given, "replicas");
    const struct key *timeout = key_list_find(&stage->options.given, "timeout");
    if (timeout && !program)
        diagnostic_add(&file->diagnostics, timeout->name_at, "%s: timeout: only for a stage with `program`",
                       stage->name);
    if (kind && kind->single && replicas && replicas->value && strcmp(replicas->value, "1") != 0)
        diagnostic_add(&file->diagnostics, replicas->value_at, "%s: replicas: must be 1%s", stage->name,
                       kind->trains ? "; `ranks` are processes that train together" : "");
}

// What --set gives the file must change something: in RUN/pipeline.yaml each stage gives its own.
static void pipeline_validate_overrides(struct parsed_file *file) {
    const struct pipeline *pipeline = file->pipeline;
    for (const struct key *top = pipeline->keys.first; top; top = top->next) {
        const struct pipeline_stage *gives = NULL;
        bool taken = top->value_at.line || !top->value || !pipeline_validate_find_shared(top->name);
        for (size_t i = 0; i < pipeline->stage_count && !taken; i++) {
            const struct pipeline_stage *stage = &pipeline->stages[i];
            const struct option *option = stage->kind ? option_find(&stage->kind->options, top->name) : NULL;
            const struct key *key = option && !option->own ? key_list_find(&stage->options.given, top->name) : NULL;
            taken = key && !key->value_at.line;
            if (key && !gives) gives = stage;
        }
        if (!taken && gives)
            diagnostic_add(&file->diagnostics, top->value_at,
                           "%s=%s changes nothing: each stage that has it gives its own; say %s.%s=%s", top->name,
                           top->value, gives->name, top->name, top->value);
    }
}

void validate_pipeline(struct parsed_file *file) {
    struct pipeline *pipeline = file->pipeline;
    for (struct key *key = pipeline->keys.first; key; key = key->next) {
        const struct option *option = option_find(&file_table, key->name);
        if (!option) option = pipeline_validate_find_shared(key->name);
        if (option)
            pipeline_validate_value(file, "pipeline", NULL, key, option);
        else
            pipeline_validate_unknown_key(file, "pipeline", key, &file_table, &stage_kinds[STAGE_SOURCE].options);
    }
    if (!key_list_find(&pipeline->keys, "run"))
        diagnostic_add(&file->diagnostics, (struct location){1, 1}, "pipeline: missing: run");
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        if (i && machine->at.line == machine[-1].at.line && machine->at.column == machine[-1].at.column)
            continue; // machines of one range have the same keys
        for (struct key *key = machine->keys.first; key; key = key->next) {
            const struct option *option = option_find(&machine_table, key->name);
            if (option)
                pipeline_validate_value(file, machine->name, NULL, key, option);
            else
                pipeline_validate_unknown_key(file, machine->name, key, &machine_table, NULL);
        }
        for (const struct option *option = machine_table.options; option->name; option++)
            if (option->required && !key_list_find(&machine->keys, option->name))
                diagnostic_add(&file->diagnostics, machine->at, "%s: missing: %s", machine->name, option->name);
    }
    for (size_t i = 0; i < pipeline->stage_count; i++) pipeline_validate_stage(file, &pipeline->stages[i]);
    // Gives each stage the values of the file, the source or optim for the keys that it lacks, and then its directories
    // below the run's.
    const struct pipeline_stage *source = pipeline_find_stage(pipeline, stage_kinds[STAGE_SOURCE].name);
    const struct pipeline_stage *optim = pipeline_find_stage(pipeline, stage_kinds[STAGE_OPTIM].name);
    struct key *run = key_list_find(&pipeline->keys, "run");
    if (run && run->value) { // one directory has one spelling, by which it is known which run is meant
        char *path = arena_strndup(&pipeline->arena, run->value, strlen(run->value)), *end = path;
        for (const char *at = path; *at; at++)
            if (*at != '/' || end == path || end[-1] != '/') *end++ = *at;
        if (end > path + 1 && end[-1] == '/') end--;
        *end = 0;
        run->value = path;
        if (strchr(path, '\n')) // or in that of the file, from which it starts
            diagnostic_add(&file->diagnostics, run->value_at, "pipeline: run: its path has a line break");
    }
    const char *written = file->written_run ? option_absolute(option_find(&file_table, "run"), pipeline->dir,
                                                              file->written_run, &pipeline->arena)
                                            : NULL;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        if (!stage->kind) continue;
        const struct option *const lists[] = {common_options, stage->kind->options.options};
        for (const struct option *option = NULL; (option = options_next(&stage->kind->options, option));) {
            if (key_list_find(&stage->options.given, option->name)) continue;
            const struct option *other = NULL; // which needs this one, but only with some value
            while ((other = options_next(&stage->kind->options, other)))
                if (other->rule == RULE_NEEDS && !strcmp(other->other, option->name)) break;
            const struct key *own = other ? key_list_find(&stage->options.given, other->name) : NULL;
            const char *value = own ? own->value : other ? other->default_value : NULL;
            if (other && (!value || strcmp(value, other->this_value) != 0)) continue;
            const struct key *top = key_list_find(&pipeline->keys, option->name), *key = NULL;
            if (top && !option->own && pipeline_validate_find_shared(option->name))
                key = top;
            else if (option->from_source && source && source != stage)
                key = key_list_find(&source->options.given, option->name);
            else if (option->from_optim && optim && optim != stage)
                key = key_list_find(&optim->options.given, option->name);
            if (key && key->value)
                pipeline_set_at(stage, option->name, key->value, key->name_at, key->value_at);
            else if (!key && option->required &&
                     !option->below_run) // a key that is wrong where it stands is not missing
                diagnostic_add(&file->diagnostics, stage->at, "%s: missing: %s", stage->name, option->name);
        }
        for (size_t k = 0; run && run->value && k < sizeof lists / sizeof *lists; k++)
            for (const struct option *option = lists[k]; option->name; option++) {
                if (!option->below_run) continue;
                const struct key *key = key_list_find(&stage->options.given, option->name);
                // RUN/pipeline.yaml names them. With another run they are below that.
                const bool moves = key && key->value && key->value_at.line && written &&
                                   !strcmp(key->value, path_join(&pipeline->arena, written, option->below_run));
                if (!key || moves)
                    pipeline_set_at(stage, option->name, path_join(&pipeline->arena, run->value, option->below_run),
                                    run->name_at, run->value_at);
            }
    }
    pipeline_validate_overrides(file);
}

void validate_combinations(struct parsed_file *file) {
    const struct pipeline *pipeline = file->pipeline;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        struct broken_rule rule = {0};
        while (stage->kind && options_next_broken_rule(&stage->options, &rule))
            diagnostic_add(&file->diagnostics, rule.at, "%s: %s", stage->name, rule.text);
    }
    // The options that must have the source's value.
    const struct pipeline_stage *source = pipeline_find_stage(pipeline, stage_kinds[STAGE_SOURCE].name);
    for (size_t i = 0; source && source->kind && i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (!stage->kind || stage == source || stage != pipeline_find_stage(pipeline, stage->name)) continue;
        for (const struct option *option = stage->kind->options.options; option->name; option++) {
            if (!option->same_as_source) continue;
            const struct option *wanted = option_find(&source->kind->options, option->name);
            const struct key *there = key_list_find(&source->options.given, option->name),
                             *here = key_list_find(&stage->options.given, option->name);
            if (!here || !here->stored || (there && !there->stored)) continue;
            if (options_number(&source->options, wanted) != options_number(&stage->options, option))
                diagnostic_add(&file->diagnostics, here->value_at, "%s: %s: %s here, but %s at source", stage->name,
                               option->name, here->value, there ? there->value : wanted->default_value);
        }
    }
}
