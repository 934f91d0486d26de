// Where libraries of NVIDIA may be that are loaded and never linked.
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

// Directories of CUDA's toolkit, of Python's packages nvidia-* of pip, and of conda and Debian. $NAME is a variable of
// the environment.
#define LIBRARY_PACKAGES "lib/python3*/*-packages/nvidia/*/lib/"
static const char *const library_places[] = {"/usr/local/cuda*/lib64/",
                                             "$VIRTUAL_ENV/" LIBRARY_PACKAGES,
                                             "$CONDA_PREFIX/lib/",
                                             "$CONDA_PREFIX/" LIBRARY_PACKAGES,
                                             "$HOME/.local/" LIBRARY_PACKAGES,
                                             "/usr/local/" LIBRARY_PACKAGES,
                                             "/usr/" LIBRARY_PACKAGES,
                                             "/opt/conda/lib/",
                                             "/opt/conda/" LIBRARY_PACKAGES,
                                             "/opt/venv/" LIBRARY_PACKAGES,
                                             "/venv/" LIBRARY_PACKAGES,
                                             NULL};

bool cuda_find_library(const char *const *names, const char *file, bool (*load)(void *self, const char *path),
                       void *self) {
    for (; *names; names++)
        if (load(self, *names)) return true;
    for (const char *const *place = library_places; *place; place++) {
        char pattern[4096];
        const char *rest = strchr(*place, '/'), *directory = "";
        if (**place == '$') {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)(rest - *place - 1), *place + 1);
            directory = getenv(name);
            if (!directory || *directory != '/') continue;
        }
        snprintf(pattern, sizeof pattern, "%s%s%s", directory, rest, file);
        glob_t found;
        bool loaded = false;
        if (glob(pattern, 0, NULL, &found) != 0) continue;
        for (size_t i = found.gl_pathc; i-- > 0 && !loaded;) loaded = load(self, found.gl_pathv[i]); // newest first
        globfree(&found);
        if (loaded) return true;
    }
    return false;
}
