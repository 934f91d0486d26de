// "Did you mean": the known name nearest to a mistyped one, by edit distance with neighbours swapped counted as one.
#include "shared/config/options.h"

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

// Keeps `candidate` if it is nearer to `name` than the best so far and near enough to be meant.
static void consider(const char *candidate, const char *name, const char **best, int *nearest) {
    int cost = distance(candidate, name);
    int bound = (int)strlen(name) / 3 + 1;
    if (cost <= bound && cost < *nearest) *best = candidate, *nearest = cost;
}

const char *nearest_name(const char *const *names, const char *name) {
    const char *best = NULL;
    int nearest = LONGEST;
    for (; *names; names++) consider(*names, name, &best, &nearest);
    return best;
}

const char *option_suggest(const struct option_table *table, const char *name) {
    const char *best = NULL;
    int nearest = LONGEST;
    for (const struct option *key = table->keys; key->name; key++)
        if (!key->hidden) consider(key->name, name, &best, &nearest);
    if (table->stage)
        for (const struct option *key = options_common(); key->name; key++) consider(key->name, name, &best, &nearest);
    return best;
}
