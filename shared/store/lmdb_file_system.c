#include "shared/store/lmdb_file_system.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"

// File systems whose files several machines may open, by the numbers of statfs(2). FUSE is among them because most of
// its file systems are.
static const struct {
    uint32_t type;
    const char *name;
} lmdb_network_types[] = {
    {0x00006969, "NFS"},   {0x0BD00BD0, "Lustre"}, {0x19830326, "BeeGFS"}, {0x47504653, "GPFS"},
    {0xFF534D42, "CIFS"},  {0xFE534D42, "SMB2"},   {0x0000517B, "SMB"},    {0x01021997, "9p"},
    {0x65735546, "FUSE"},  {0x00C36400, "Ceph"},   {0x5346414F, "AFS"},    {0x6B414653, "AFS"},
    {0x7461636F, "OCFS2"}, {0x01161970, "GFS2"},   {0xAAD7AAEA, "PanFS"},  {0x73757245, "Coda"},
};
static const uint32_t lmdb_overlay_type = 0x794C7630;

static const char *lmdb_network_type(uint32_t type) {
    for (size_t i = 0; i < sizeof lmdb_network_types / sizeof *lmdb_network_types; i++)
        if (lmdb_network_types[i].type == type) return lmdb_network_types[i].name;
    return NULL;
}

bool lmdb_overlay_upper(const char *line, unsigned device_major, unsigned device_minor, char *upper, size_t size) {
    unsigned line_major, line_minor;
    const char *option = strstr(line, "upperdir=");
    if (sscanf(line, "%*d %*d %u:%u", &line_major, &line_minor) != 2 || !option) return false;
    if (line_major != device_major || line_minor != device_minor) return false;
    option += strlen("upperdir=");
    const size_t length = strcspn(option, ", \n");
    if (!length || length >= size) return false;
    memcpy(upper, option, length);
    upper[length] = 0;
    return true;
}

const char *lmdb_network_file_system(const char *directory) {
    struct statfs system;
    struct stat info;
    char line[8192], upper[4096];
    if (statfs(directory, &system)) return NULL;
    if ((uint32_t)system.f_type != lmdb_overlay_type) return lmdb_network_type((uint32_t)system.f_type);
    // What is written goes to the upper directory, which a container may not see.
    FILE *mounts = stat(directory, &info) ? NULL : fopen("/proc/self/mountinfo", "re");
    const char *name = NULL;
    while (mounts && !name && fgets(line, sizeof line, mounts))
        if (lmdb_overlay_upper(line, major(info.st_dev), minor(info.st_dev), upper, sizeof upper) &&
            statfs(upper, &system) == 0)
            name = lmdb_network_type((uint32_t)system.f_type);
    if (mounts) fclose(mounts);
    return name;
}

status lmdb_check_file_system(const char *path) {
    struct arena arena = {0};
    const char *directory = path_parent(&arena, path);
    const char *name = directory ? lmdb_network_file_system(directory) : NULL;
    status result = OK;
    if (name)
        result = fail(USAGE,
                      "%s: LMDB files do not work on %s, a network file system: set `store:` to a directory on a "
                      "local disk",
                      path, name);
    arena_release(&arena);
    return result;
}
