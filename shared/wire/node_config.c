// The keys of the file are those of its first version: `desk` is an endpoint.
#include "shared/wire/node_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"

// ---- writing ----

static status node_config_add_line(struct buf *out, const char *word, const char *value) {
    if (strchr(value, '\n')) return fail(USAGE, "a path or an argument contains a line break: %s", value);
    buf_printf(out, "%s %s\n", word, value);
    return OK;
}

status node_config_write(const struct node_config *config, struct buf *out) {
    buf_puts(out, "caravan-wiring 1\n");
    TRY(node_config_add_line(out, "run", config->run));
    TRY(node_config_add_line(out, "folder", config->run_dir));
    buf_printf(out, "stage %s\nreplica %d\n", config->stage, config->replica);
    if (*config->machine) TRY(node_config_add_line(out, "machine", config->machine));
    if (*config->from) TRY(node_config_add_line(out, "from", config->from));
    TRY(node_config_add_line(out, "last-stage", config->last_stage));
    if (config->last) buf_puts(out, "last yes\n");
    if (config->trains) buf_puts(out, "trains yes\n");
    if (config->settings) TRY(node_config_add_line(out, "settings", config->settings));
    if (config->secret) TRY(node_config_add_line(out, "secret", config->secret));
    if (config->home) TRY(node_config_add_line(out, "home", config->home));
    for (size_t i = 0; i < config->command_count; i++) TRY(node_config_add_line(out, "command", config->command[i]));
    for (size_t i = 0; i < config->listen_count; i++) TRY(node_config_add_line(out, "listen", config->listen[i]));
    for (size_t i = 0; i < config->reader_count; i++) TRY(node_config_add_line(out, "reader", config->readers[i]));
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &config->endpoints[i];
        if (strchr(endpoint->address, '\n'))
            return fail(USAGE, "a path or an argument contains a line break: %s", endpoint->address);
        buf_printf(out, "desk %s %d %s %s %s\n", endpoint->stage, endpoint->replica,
                   *endpoint->machine ? endpoint->machine : "-", endpoint->key ? endpoint->key : "-",
                   endpoint->address);
    }
    return OK;
}

// ---- reading ----

static void node_config_set_string(struct node_config *config, const char **out, const char *value) {
    *out = arena_strndup(&config->arena, value, strlen(value));
}

static void node_config_append(struct node_config *config, const char ***list, size_t *count, const char *value) {
    RESIZE(list, *count + 1);
    node_config_set_string(config, &(*list)[(*count)++], value);
}

static status node_config_read_line(struct node_config *config, char *line) {
    char *value = strchr(line, ' ');
    if (!value) return fail(DATAERR, "'%s' has no value", line);
    *value++ = 0;
    if (!strcmp(line, "run")) {
        node_config_set_string(config, &config->run, value);
        return OK;
    }
    if (!strcmp(line, "folder")) {
        node_config_set_string(config, &config->run_dir, value);
        return OK;
    }
    if (!strcmp(line, "stage")) {
        node_config_set_string(config, &config->stage, value);
        return OK;
    }
    if (!strcmp(line, "machine")) {
        node_config_set_string(config, &config->machine, value);
        return OK;
    }
    if (!strcmp(line, "from")) {
        node_config_set_string(config, &config->from, value);
        return OK;
    }
    if (!strcmp(line, "last-stage")) {
        node_config_set_string(config, &config->last_stage, value);
        return OK;
    }
    if (!strcmp(line, "settings")) {
        node_config_set_string(config, &config->settings, value);
        return OK;
    }
    if (!strcmp(line, "secret")) {
        node_config_set_string(config, &config->secret, value);
        return OK;
    }
    if (!strcmp(line, "home")) {
        node_config_set_string(config, &config->home, value);
        return OK;
    }
    if (!strcmp(line, "command")) {
        node_config_append(config, &config->command, &config->command_count, value);
        return OK;
    }
    if (!strcmp(line, "listen")) {
        node_config_append(config, &config->listen, &config->listen_count, value);
        return OK;
    }
    if (!strcmp(line, "reader")) {
        node_config_append(config, &config->readers, &config->reader_count, value);
        return OK;
    }
    if (!strcmp(line, "last")) {
        config->last = true;
        return OK;
    }
    if (!strcmp(line, "trains")) {
        config->trains = true;
        return OK;
    }
    if (!strcmp(line, "replica")) {
        config->replica = (int)strtol(value, NULL, 10);
        return OK;
    }
    if (strcmp(line, "desk") != 0) return fail(DATAERR, "unknown key '%s'", line);
    char *rest = NULL;
    const char *stage = strtok_r(value, " ", &rest), *replica = strtok_r(NULL, " ", &rest);
    const char *machine = strtok_r(NULL, " ", &rest), *key = strtok_r(NULL, " ", &rest);
    if (!stage || !replica || !machine || !key || !*rest) return fail(DATAERR, "an endpoint has too few fields");
    RESIZE(&config->endpoints, config->endpoint_count + 1);
    struct node_endpoint *endpoint = &config->endpoints[config->endpoint_count++];
    *endpoint = (struct node_endpoint){.replica = (int)strtol(replica, NULL, 10)};
    node_config_set_string(config, &endpoint->stage, stage);
    node_config_set_string(config, &endpoint->machine, strcmp(machine, "-") != 0 ? machine : "");
    node_config_set_string(config, &endpoint->address, rest);
    if (strcmp(key, "-") != 0) node_config_set_string(config, &endpoint->key, key);
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
        } else if (strcmp(line, "caravan-wiring 1") != 0) {
            result = fail(DATAERR, "%s: not a node config of this version", path);
        }
    }
    if (result == OK && (!config->run || !config->run_dir || !config->stage || config->replica < 1 ||
                         !config->last_stage || !config->listen_count))
        result = fail(DATAERR, "%s: truncated", path);
    if (result == OK && config->secret) result = wire_key_read(&config->security, config->secret);
    for (size_t i = 0; config->secret && i < config->endpoint_count && result == OK; i++)
        if (config->endpoints[i].key) wire_admit(&config->security, config->endpoints[i].key);
    buf_release(&text);
    if (result != OK) node_config_release(config);
    return result;
}

const struct wire_security *node_config_security(const struct node_config *config) {
    return config->secret ? &config->security : NULL;
}

void node_config_release(struct node_config *config) {
    free(config->command);
    free(config->listen);
    free(config->readers);
    free(config->endpoints);
    wire_security_release(&config->security);
    arena_release(&config->arena);
    *config = (struct node_config){0};
}
