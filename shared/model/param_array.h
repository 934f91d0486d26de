// Arrays with one number for each parameter, in the order of the parameter table: the weights, their gradients, the
// optimizer's moments, the reference. And the exchange of a parameter's values with the host.
//
// Float32 numbers are an array of F32, or two arrays of pairs (kernels/ops.h): BF16 values and U16 remainders.
#ifndef SHARED_MODEL_PARAM_ARRAY_H
#define SHARED_MODEL_PARAM_ARRAY_H

#include "kernels/ops.h"
#include "shared/model/parameters.h"

struct param_array {
    const struct parameter_table *table;
    struct buffer *buffer;
    int ranges; // of the table: the first ones
    enum element types[MAX_PARAM_RANGES];
    size_t starts[MAX_PARAM_RANGES]; // bytes: where a range begins
};

// An array of zeros for the first `ranges` ranges of the table, of one type for matrices and one for vectors. The
// caller frees it with param_array_release; a zeroed struct is no array. UNAVAILABLE when memory is short.
status param_array_init(struct param_array *array, struct backend *backend, const struct parameter_table *table,
                        int ranges, enum element matrices, enum element vectors);

// An array like that of param_array_init in memory that exists: `buffer`, which must outlive it.
void param_array_view(struct param_array *array, struct buffer *buffer, const struct parameter_table *table, int ranges,
                      enum element matrices, enum element vectors);

// Returns the bytes of such an array.
size_t param_array_bytes(const struct parameter_table *table, int ranges, enum element matrices, enum element vectors);

// Frees the array and zeroes the struct. A zeroed struct is fine.
void param_array_release(struct param_array *array, struct backend *backend);

// A fused parameter as rows x columns.
struct tensor param_tensor(const struct param_array *array, const struct fused_param *param);

// The elements [offset, offset + count), all of one range, as one row; none if there is no array.
struct tensor param_slice(const struct param_array *array, int64_t offset, int64_t count);

// A range of the table as one row; none if there is no array.
struct tensor param_range(const struct param_array *array, int range);

// Whether there is an array, and it keeps the parameter.
bool param_array_has(const struct param_array *array, const struct parameter *parameter);

// The type in which the array keeps a parameter.
enum element param_type(const struct param_array *array, const struct parameter *parameter);

// Receives elements of parameters, in the order of the table, some at a time. A failure ends the download.
typedef status element_sink(void *context, const void *elements, size_t bytes);

// Passes a parameter's values, converted to `type`, to the sink. `remainders`: a zeroed struct unless the values are
// pairs. Returns the sink's failure; UNAVAILABLE when memory is short.
status parameter_download(struct backend *backend, const struct param_array *values,
                          const struct param_array *remainders, const struct parameter *parameter, enum element type,
                          element_sink *sink, void *context);

// Sets a parameter's values from the host's elements of type `type`, at any alignment. UNAVAILABLE when memory is
// short.
status parameter_upload(struct backend *backend, const struct param_array *values, const struct param_array *remainders,
                        const struct parameter *parameter, const void *host, enum element type);

#endif
