// "Did you mean": nearness is the edit distance, with two swapped neighbours counted as one edit.
#include "shared/config/options.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 48 };

static int least(int a, int b, int c) {
    int smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

static bool same(char a, char b) {
    return a == b || (a == '-' && b == '_') || (a == '_' && b == '-');
}

static int distance(const char *a, const char *b) {
    int rows = (int)strlen(a), columns = (int)strlen(b);
    int cost[LONGEST + 1][LONGEST + 1];
    if (rows > LONGEST || columns > LONGEST) return LONGEST;
    for (int i = 0; i <= rows; i++) cost[i][0] = i;
    for (int j = 0; j <= columns; j++) cost[0][j] = j;
    for (int i = 1; i <= rows; i++) {
        for (int j = 1; j <= columns; j++) {
            int change = cost[i - 1][j - 1] + !same(a[i - 1], b[j - 1]);
            cost[i][j] = least(cost[i - 1][j] + 1, cost[i][j - 1] + 1, change);
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]) &&
                cost[i - 2][j - 2] + 1 < cost[i][j])
                cost[i][j] = cost[i - 2][j - 2] + 1;
        }
    }
    return cost[rows][columns];
}

struct nearest nearest_to(const char *typed) {
    return (struct nearest){.typed = typed, .distance = LONGEST};
}

void nearest_offer(struct nearest *nearest, const char *name) {
    int cost = distance(name, nearest->typed), bound = (int)strlen(nearest->typed) / 3 + 1;
    if (cost > bound || cost >= nearest->distance) return;
    nearest->name = name;
    nearest->distance = cost;
}

const char *nearest_question(struct nearest *nearest) {
    if (!nearest->name) return "";
    snprintf(nearest->question, sizeof nearest->question, "; did you mean %s?", nearest->name);
    return nearest->question;
}

const char *option_suggest(const struct option_table *table, const char *name) {
    struct nearest nearest = nearest_to(name);
    for (const struct option *option = table->options; option->name; option++)
        if (!option->hidden) nearest_offer(&nearest, option->name);
    for (const struct option *option = options_common(); table->stage && option->name; option++)
        if (!option->hidden) nearest_offer(&nearest, option->name);
    return nearest.name;
}
