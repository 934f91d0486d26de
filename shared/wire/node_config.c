#include "shared/wire/node_config.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"

static const char first_line[] = "caravan-node 1";

// A line with one string, and a list of which every entry has a line of its own; in the order of the file.
struct node_config_row {
    const char *word;
    size_t offset, count_offset; // of the string, or of the list and its length
    bool list;
};

#define STRING(word, member)                                                                                           \
    { word, offsetof(struct node_config, member), 0, false }
#define LIST(word, member, count)                                                                                      \
    { word, offsetof(struct node_config, member), offsetof(struct node_config, count), true }

static const struct node_config_row rows[] = {
    STRING("run", run),
    STRING("run-dir", run_dir),
    STRING("stage", stage),
    STRING("machine", machine),
    STRING("from", from),
    STRING("last-stage", last_stage),
    STRING("settings", settings),
    STRING("secret", secret),
    STRING("program-dir", program_dir),
    LIST("command", command, command_count),
    LIST("listen", listen, listen_count),
    LIST("reader", readers, reader_count),
    LIST("rank-listen", rank_listen, rank_listen_count),
};
static const size_t row_count = sizeof rows / sizeof *rows;

// ---- writing ----

static status node_config_add_line(struct buf *out, const char *word, const char *value) {
    if (strchr(value, '\n')) return fail(USAGE, "a path or an argument contains a line break: %s", value);
    buf_printf(out, "%s %s\n", word, value);
    return OK;
}

status node_config_write(const struct node_config *config, struct buf *out) {
    buf_printf(out, "%s\nreplica %d\n", first_line, config->replica);
    if (config->last) buf_puts(out, "last yes\n");
    if (config->trains) buf_puts(out, "trains yes\n");
    for (const struct node_config_row *row = rows; row < rows + row_count; row++) {
        const void *at = (const char *)config + row->offset, *count_at = (const char *)config + row->count_offset;
        const char *const *values = row->list ? *(const char *const *const *)at : at; // a string is an array of one
        const size_t count = row->list ? *(const size_t *)count_at : *values && **values;
        for (size_t i = 0; i < count; i++) TRY(node_config_add_line(out, row->word, values[i]));
    }
    for (size_t i = 0; i < config->endpoint_count + config->rank_count; i++) {
        const bool rank = i >= config->endpoint_count;
        const struct node_endpoint *endpoint =
            rank ? &config->ranks[i - config->endpoint_count] : &config->endpoints[i];
        buf_printf(out, "%s %s %d %s %s ", rank ? "rank" : "endpoint", endpoint->stage, endpoint->replica,
                   *endpoint->machine ? endpoint->machine : "-", endpoint->key ? endpoint->key : "-");
        if (strchr(endpoint->address, '\n')) return node_config_add_line(out, "", endpoint->address);
        buf_printf(out, "%s\n", endpoint->address);
    }
    return OK;
}

// ---- reading ----

static const char *node_config_copy(struct node_config *config, const char *value) {
    return arena_strndup(&config->arena, value, strlen(value));
}

static status node_config_read_line(struct node_config *config, char *line) {
    char *value = strchr(line, ' ');
    if (!value) return fail(DATAERR, "'%s' has no value", line);
    *value++ = 0;
    for (const struct node_config_row *row = rows; row < rows + row_count; row++) {
        if (strcmp(line, row->word) != 0) continue;
        void *at = (char *)config + row->offset, *count_at = (char *)config + row->count_offset;
        const char *string = node_config_copy(config, value), ***list = at, **single = at;
        size_t *count = count_at;
        if (!row->list) {
            *single = string;
            return OK;
        }
        RESIZE(list, *count + 1);
        (*list)[(*count)++] = string;
        return OK;
    }
    const bool rank = !strcmp(line, "rank");
    if (rank || !strcmp(line, "endpoint")) {
        struct node_endpoint **endpoints = rank ? &config->ranks : &config->endpoints;
        size_t *count = rank ? &config->rank_count : &config->endpoint_count;
        char *rest = NULL;
        const char *stage = strtok_r(value, " ", &rest), *replica = strtok_r(NULL, " ", &rest);
        const char *machine = strtok_r(NULL, " ", &rest), *key = strtok_r(NULL, " ", &rest);
        if (!stage || !replica || !machine || !key || !*rest) return fail(DATAERR, "an endpoint has too few fields");
        RESIZE(endpoints, *count + 1);
        (*endpoints)[(*count)++] = (struct node_endpoint){
            .stage = node_config_copy(config, stage),
            .replica = (int)strtol(replica, NULL, 10),
            .machine = node_config_copy(config, strcmp(machine, "-") != 0 ? machine : ""),
            .address = node_config_copy(config, rest),
            .key = strcmp(key, "-") != 0 ? node_config_copy(config, key) : NULL,
        };
        return OK;
    }
    if (!strcmp(line, "last"))
        config->last = true;
    else if (!strcmp(line, "trains"))
        config->trains = true;
    else if (!strcmp(line, "replica"))
        config->replica = (int)strtol(value, NULL, 10);
    else
        return fail(DATAERR, "unknown key '%s'", line);
    return OK;
}

status node_config_read(struct node_config *config, const char *path) {
    struct buf text = {0};
    *config = (struct node_config){.machine = "", .from = ""};
    status result = file_read(path, &text);
    if (result == OK && !text.size) result = fail(DATAERR, "%s: empty", path);
    char *rest = NULL;
    size_t number = 1;
    for (char *line = result == OK ? strtok_r(text.data, "\n", &rest) : NULL; line && result == OK;
         line = strtok_r(NULL, "\n", &rest), number++) {
        if (number > 1) {
            result = node_config_read_line(config, line);
            if (result != OK) result = fail_prefix(result, "%s: line %zu", path, number);
        } else if (strcmp(line, first_line) != 0) {
            result = fail(DATAERR, "%s: not a node config of this version", path);
        }
    }
    if (result == OK && (!config->run || !config->run_dir || !config->stage || config->replica < 1 ||
                         !config->last_stage || !config->listen_count))
        result = fail(DATAERR, "%s: truncated", path);
    if (result == OK && config->rank_count && config->rank_count < (size_t)config->replica)
        result = fail(DATAERR, "%s: rank %d of %zu", path, config->replica - 1, config->rank_count);
    if (result == OK && config->secret) result = wire_key_read(&config->security, config->secret);
    for (size_t i = 0; config->secret && i < config->endpoint_count && result == OK; i++)
        if (config->endpoints[i].key) wire_admit(&config->security, config->endpoints[i].key);
    buf_release(&text);
    if (result != OK) node_config_release(config);
    return result;
}

void node_config_release(struct node_config *config) {
    free(config->command);
    free(config->listen);
    free(config->readers);
    free(config->ranks);
    free(config->rank_listen);
    free(config->endpoints);
    wire_security_release(&config->security);
    arena_release(&config->arena);
    *config = (struct node_config){0};
}
