// Safetensors: named tensors in a file, mapped and read in place; a folder's one file or its shards with an index.
//
// The format: 8 bytes with the header's length (little-endian), the header (a JSON object: name -> dtype, shape,
// data_offsets), then the data without holes. A header is believed in nothing: every length, offset and shape is
// checked against the file before a pointer is handed out.
#ifndef SHARED_MODEL_SAFETENSORS_H
#define SHARED_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/status.h"

enum { MAX_RANK = 8 };

// A tensor in a mapped file, or (data NULL) one that is to be written.
struct stored_tensor {
    const char *name;
    const char *file;  // path of the file that holds it
    enum element type; // ELEMENT_F32, ELEMENT_F16 or ELEMENT_BF16
    int rank;
    int64_t shape[MAX_RANK];
    const void *data; // little-endian, row-major; maybe not aligned to its elements
    size_t size;      // bytes
};

struct safetensors;

// Opens FOLDER/model.safetensors, or the shards that FOLDER/model.safetensors.index.json names. DATAERR names the file,
// and the tensor, that is wrong.
status safetensors_open_dir(struct safetensors **out, const char *dir);

// Opens one file.
status safetensors_open(struct safetensors **out, const char *path);

// Checks a file image in memory (which must outlive the result) in place of a file; `name` stands in messages.
status safetensors_open_memory(struct safetensors **out, const void *data, size_t size, const char *name);

// NULL is fine; sets *store to NULL.
void safetensors_close(struct safetensors **store);

// How many tensors there are.
size_t safetensors_count(const struct safetensors *store);

// Tensor number `index`: file by file, in the order of their data. Valid as long as the store.
const struct stored_tensor *safetensors_at(const struct safetensors *store, size_t index);

// The tensor of that name, or NULL.
const struct stored_tensor *safetensors_find(const struct safetensors *store, const char *name);

// Says that the data of a file's tensor (not of an image in memory) will not be read again soon: the memory that its
// pages took is given back.
void safetensors_release_pages(const struct stored_tensor *tensor);

// How many elements a tensor has.
int64_t stored_tensor_count(const struct stored_tensor *tensor);

// "[2, 3]" into text[0..size); returns text.
const char *stored_tensor_shape(const struct stored_tensor *tensor, char *text, size_t size);

// A file that is being written: PATH.tmp until it is finished, then PATH at once. A PATH.tmp that is there is written
// over: its pages serve again.
struct safetensors_writer;

// Starts a file with these tensors (name, type, rank and shape count; data does not). Metadata says "format": "pt".
// `lasting`: it is to outlive a loss of power, and nobody reads it soon. UNAVAILABLE when the disk refuses.
status safetensors_create(struct safetensors_writer **out, const char *path, const struct stored_tensor *tensors,
                          size_t count, bool lasting);

// The next bytes of the data, tensor after tensor in the order given to safetensors_create.
status safetensors_write(struct safetensors_writer *writer, const void *data, size_t size);

// safetensors_write with the signature of an element_sink; `writer` is a struct safetensors_writer.
status safetensors_sink(void *writer, const void *data, size_t size);

// Renames, a lasting file after it is on the disk; BUG if bytes are missing. On any failure PATH is as before and
// PATH.tmp is gone. Frees the writer and sets it to NULL.
status safetensors_finish(struct safetensors_writer **writer);

// Gives up: removes PATH.tmp. NULL is fine; sets *writer to NULL.
void safetensors_abort(struct safetensors_writer **writer);

#endif
