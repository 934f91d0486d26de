#include "shared/wire/admission.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

// Compares a client's fingerprint with ours.
static bool admission_check_run(const struct wire_self *self, const struct wire_message *hello,
                                char (*reason)[ADMISSION_REASON_MAX]) {
    size_t word = 0, same = 0; // where the word in which they differ begins
    for (; self->run[same] && self->run[same] == hello->run[same]; same++)
        if (self->run[same] == ' ') word = same + 1;
    const char *difference = self->run + word, *equals = strchr(difference, '=');
    if (self->run[same] == hello->run[same] || (word && !strcmp(hello->purpose, "watch"))) return true;
    if (word && equals)
        snprintf(*reason, sizeof *reason, "%.*s's settings differ between %.100s-%d%s%.100s and %s-%d%s%s",
                 (int)(equals - difference), difference, hello->name, (int)hello->replica,
                 *hello->machine ? " on " : "", hello->machine, self->name, self->replica, *self->machine ? " on " : "",
                 self->machine);
    else
        snprintf(*reason, sizeof *reason, "%.100s-%d belongs to another run than %s-%d: their pipeline files differ",
                 hello->name, (int)hello->replica, self->name, self->replica);
    return false;
}

// Checks that the client runs where it says, has that machine's key, and may have this purpose. Programs that watch a
// run are no processes of it; they run on one of its machines.
static bool admission_check_name(const struct node_config *config, const struct wire_message *hello, const char *key,
                                 char (*reason)[ADMISSION_REASON_MAX]) {
    const bool watch = !strcmp(hello->purpose, "watch");
    const bool settles = !strcmp(hello->name, SUPERVISOR_NAME) || !strcmp(hello->name, config->last_stage);
    bool runs = false, has_key = false;
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &config->endpoints[i];
        if (strcmp(endpoint->machine, hello->machine) != 0) continue;
        if (!watch && (strcmp(endpoint->stage, hello->name) != 0 || endpoint->replica != hello->replica)) continue;
        runs = true;
        has_key |= !key || (endpoint->key && !strcmp(endpoint->key, key));
    }
    const char *mistake = NULL;
    if (!settles && !strcmp(hello->purpose, "ledger")) mistake = "only the last stage settles groups";
    if (!has_key) mistake = "its key is another machine's";
    if (!runs) mistake = "the run has no such process there";
    if (mistake)
        snprintf(*reason, sizeof *reason, "%.100s-%d%s%.100s: %s", hello->name, (int)hello->replica,
                 *hello->machine ? " on " : "", hello->machine, mistake);
    return !mistake;
}

bool admission_check(const struct wire_self *self, const struct wire_message *hello, const char *key,
                     char (*reason)[ADMISSION_REASON_MAX]) {
    **reason = 0;
    if (hello->replica < 1 || hello->replica > INT_MAX) {
        snprintf(*reason, sizeof *reason, "%.100s says that it is replica %lld", hello->name,
                 (long long)hello->replica);
        return false;
    }
    const int replica = (int)hello->replica;
    if (hello->protocol != WIRE_PROTOCOL) {
        snprintf(*reason, sizeof *reason, "%.100s-%d uses protocol %lld, but %s-%d uses protocol %d", hello->name,
                 replica, (long long)hello->protocol, self->name, self->replica, WIRE_PROTOCOL);
        return false;
    }
    if (hello->schema != WIRE_SCHEMA) {
        snprintf(*reason, sizeof *reason, "%.100s-%d has version %lld of the group, but %s-%d has version %d",
                 hello->name, replica, (long long)hello->schema, self->name, self->replica, WIRE_SCHEMA);
        return false;
    }
    if (!admission_check_run(self, hello, reason)) return false;
    return !self->config || admission_check_name(self->config, hello, key, reason);
}
