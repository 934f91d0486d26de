// The shapes of models that have a name, as config.json has them.
#ifndef SHARED_MODEL_NAMED_SHAPES_H
#define SHARED_MODEL_NAMED_SHAPES_H

#include "shared/base/json.h"
#include "shared/base/memory.h"

// Makes the config.json of a shape: a known one, such as tiny, or a file's. Sets *fixed if its vocabulary has a given
// size. USAGE when the shape is NULL, or neither a name nor a file. It lies in the arena.
status named_shape_find(struct json **out, struct arena *arena, const char *shape, bool *fixed);

// Whether a shape has that name.
bool named_shape_exists(const char *name);

// Reads the config.json that `model` stands for: a directory's, that file itself, or a known shape's. *name = what
// messages call it, in the arena. DATAERR when it cannot be read; UNAVAILABLE when memory is short.
status named_shape_read(const char *model, struct buf *text, struct arena *arena, const char **name);

#endif
