// The shapes of models that have a name, as config.json has them.
#ifndef SHARED_MODEL_NAMED_SHAPES_H
#define SHARED_MODEL_NAMED_SHAPES_H

#include "shared/base/json.h"

// Makes the config.json of a shape: a known one, such as tiny, or a file's. Sets *fixed if its vocabulary has a given
// size. USAGE when the shape is NULL, or neither a name nor a file. Release with json_object_put.
status named_shape_find(json_object **out, const char *shape, bool *fixed);

#endif
