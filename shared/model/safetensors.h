// Safetensors: named tensors in a file, mapped and read in place; a directory's one file, or its shards with an index.
//
// The format: 8 bytes with the length of the header (little-endian), the header (a JSON object: name -> dtype, shape,
// data_offsets), then the data without holes. A header is not trusted: every length, offset and shape is checked
// against the file before a pointer is returned.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/status.h"

enum { MAX_RANK = 8 };

// A tensor in a mapped file, or (data NULL) one to be written.
struct stored_tensor {
    const char *name;
    const char *file;  // the path of the file that holds it
    enum element type; // ELEMENT_F32, ELEMENT_F16 or ELEMENT_BF16
    int rank;
    int64_t shape[MAX_RANK];
    const void *data; // little-endian, row-major; may be unaligned
    size_t size;      // bytes
};

struct safetensors;

// Opens DIR/model.safetensors, or the shards that DIR/model.safetensors.index.json names. DATAERR names the file and
// the tensor that is wrong.
status safetensors_open_dir(struct safetensors **out, const char *dir);

// Opens one file. DATAERR as above.
status safetensors_open(struct safetensors **out, const char *path);

// Opens one file, of which only the tensors count whose names begin with `prefix`; their names are what stands behind
// it. DATAERR as above.
status safetensors_open_part(struct safetensors **out, const char *path, const char *prefix);

// Opens a file's image in memory, which must outlive the result; `name` is used in messages. DATAERR as above.
status safetensors_open_memory(struct safetensors **out, const void *data, size_t size, const char *name);

// NULL is fine; sets *store to NULL.
void safetensors_close(struct safetensors **store);

// The number of tensors.
size_t safetensors_count(const struct safetensors *store);

// Tensor number `index`: file after file, in the order of their data. Lives as long as the store.
const struct stored_tensor *safetensors_at(const struct safetensors *store, size_t index);

// The tensor of that name, or NULL.
const struct stored_tensor *safetensors_find(const struct safetensors *store, const char *name);

// Gives the pages of a file's tensor (not of an image in memory) back to the system; a later read maps them again.
void safetensors_release_pages(const struct stored_tensor *tensor);

// The number of elements.
int64_t stored_tensor_count(const struct stored_tensor *tensor);

// Writes "[2, 3]" to text[0..size) and returns text.
const char *stored_tensor_shape(const struct stored_tensor *tensor, char *text, size_t size);

// The processes that write a file together, each what it has of the data. Where a struct is asked for, NULL or a count
// of 1 is one process alone.
struct file_ranks {
    int own, count; // rank 0 makes the file and gives it its name
    // all[r] = what rank r has at all[r]; waits for all ranks. UNAVAILABLE when one is gone.
    status (*meet)(struct file_ranks *ranks, uint64_t *all);
    bool away; // this one does not reach the file: others write what it has, and it only meets them
};

// A file that is being written: PATH.tmp until it is finished, then PATH. A PATH.tmp that exists is overwritten by
// one process, so that its pages are used again.
//
// Where each tensor's data stand follows from the table of tensors alone, so that the file has the same bytes,
// whichever ranks write them. A rank's failure is one of all ranks: each gets a message that names the file.
struct safetensors_writer;

// Starts a file with these tensors, of which name, type, rank and shape are used; all ranks name the same ones. The
// metadata says "format": "pt". `durable`: the file has to survive a loss of power, and no process reads it soon. Waits
// for the other ranks. UNAVAILABLE when the file system refuses, or a rank, or when PATH is no file.
status safetensors_create(struct safetensors_writer **out, const char *path, const struct stored_tensor *tensors,
                          size_t count, bool durable, struct file_ranks *ranks);

// Writes bytes of tensor number `tensor`'s data, from byte `at` of them on; not from away. One process alone is fastest
// in the order of the file. UNAVAILABLE when the disk is full; BUG if the tensor has fewer bytes.
status safetensors_write(struct safetensors_writer *writer, size_t tensor, size_t at, const void *data, size_t size);

// Waits for the other ranks; then rank 0 renames PATH.tmp to PATH; a durable file is on the disk before. To another
// rank OK says only that all data are written. BUG if all ranks together have not written as many bytes as the tensors
// have. After any failure before the renaming PATH is as it was and rank 0 removes PATH.tmp. Frees the writer and sets
// it to NULL.
status safetensors_finish(struct safetensors_writer **writer);

// Lets the other ranks fail at their next meeting, removes PATH.tmp and frees the writer. Keeps fail_text. NULL is
// fine; sets *writer to NULL.
void safetensors_abort(struct safetensors_writer **writer);
