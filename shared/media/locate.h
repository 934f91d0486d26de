// Where a medium that a prompt names lies.
#ifndef SHARED_MEDIA_LOCATE_H
#define SHARED_MEDIA_LOCATE_H

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"

// *path, in the arena: `written` as in the prompt (file:// allowed, percent signs in it decoded unless a file of that
// very name exists), under `media_root` (NULL: the working folder) when relative. BAD_SAMPLE for a name that no file
// can have, or another kind of address.
status media_locate(char **path, struct arena *arena, const char *media_root, struct string written);

// The index-th image or clip of the group's messages, NULL when there are not so many.
const struct part *media_part(const struct group *group, size_t index);

// How many images and clips the messages have.
size_t media_parts(const struct group *group);

// The part's path as it is written.
struct string media_written(const struct part *part);

#endif
