// The difference between oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13), for onednn.c alone.
//
// oneDNN 2 holds a memory descriptor by value and builds a product in two steps, through an operation descriptor.
// oneDNN 3 holds the descriptor behind a pointer and builds the product in one call. Everything else that onednn.c
// calls is the same in both. Nothing outside this header asks for the version.
//
// Measured with oneDNN 3.7 (tests/ops/linear.c checks it): dnnl_set_max_cpu_isa is still honoured; the formats BA16a64b
// and BA16a64b2a are still brgemm's own choice; and the sums of a row are the same for every number of rows and columns
// with one exception. A product of a single row with an inner length above 1024 is summed in another order, so oneDNN 3
// never gets one: such a row is padded with a second row of zeros.
#ifndef KERNELS_CPU_ONEDNN_COMPAT_H
#define KERNELS_CPU_ONEDNN_COMPAT_H

#include <assert.h>
#include <oneapi/dnnl/dnnl.h>

static_assert(DNNL_VERSION_MAJOR == 2 || DNNL_VERSION_MAJOR == 3, "this major version of oneDNN is not supported");

// An owned descriptor of a matrix. Zeroed: none.
struct onednn_desc {
    dnnl_memory_desc_t desc;
};

#if DNNL_VERSION_MAJOR < 3

enum { onednn_rows_min = 1 }; // the fewest rows whose sums have the common order

typedef const dnnl_memory_desc_t *const_dnnl_memory_desc_t; // oneDNN 3's name for a borrowed descriptor

// Describes a matrix of rows x columns. The caller releases it with onednn_desc_release.
static inline dnnl_status_t onednn_desc_init(struct onednn_desc *out, dnnl_data_type_t type, dnnl_format_tag_t tag,
                                             int64_t rows, int64_t columns) {
    dnnl_dims_t shape = {rows, columns};
    return dnnl_memory_desc_init_by_tag(&out->desc, 2, shape, type, tag);
}

// A zeroed descriptor is fine.
static inline void onednn_desc_release(struct onednn_desc *desc) {
    (void)desc;
}

// The descriptor, valid as long as its owner.
static inline const_dnnl_memory_desc_t onednn_desc_get(const struct onednn_desc *desc) {
    return &desc->desc;
}

// *out = the best implementation of out = in x matrix. The caller destroys it with dnnl_primitive_desc_destroy.
static inline dnnl_status_t onednn_matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                               const struct onednn_desc *in, const struct onednn_desc *matrix,
                                               const struct onednn_desc *result, const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t matmul;
    dnnl_status_t code = dnnl_matmul_desc_init(&matmul, &in->desc, &matrix->desc, NULL, &result->desc);
    return code == dnnl_success ? dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL) : code;
}

#else

enum { onednn_rows_min = 2 }; // the fewest rows whose sums have the common order

// Describes a matrix of rows x columns. The caller releases it with onednn_desc_release.
static inline dnnl_status_t onednn_desc_init(struct onednn_desc *out, dnnl_data_type_t type, dnnl_format_tag_t tag,
                                             int64_t rows, int64_t columns) {
    dnnl_dims_t shape = {rows, columns};
    return dnnl_memory_desc_create_with_tag(&out->desc, 2, shape, type, tag);
}

// A zeroed descriptor is fine.
static inline void onednn_desc_release(struct onednn_desc *desc) {
    if (desc->desc) dnnl_memory_desc_destroy(desc->desc);
    desc->desc = NULL;
}

// The descriptor, valid as long as its owner.
static inline const_dnnl_memory_desc_t onednn_desc_get(const struct onednn_desc *desc) {
    return desc->desc;
}

// *out = the best implementation of out = in x matrix. The caller destroys it with dnnl_primitive_desc_destroy.
static inline dnnl_status_t onednn_matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                               const struct onednn_desc *in, const struct onednn_desc *matrix,
                                               const struct onednn_desc *result, const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(out, engine, in->desc, matrix->desc, NULL, result->desc, attr);
}

#endif

#endif
