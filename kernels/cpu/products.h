// Matrix products through oneDNN: primitives kept by shape, single-threaded, shared out in tiles to the pool.
#ifndef KERNELS_CPU_PRODUCTS_H
#define KERNELS_CPU_PRODUCTS_H

#include "kernels/ops.h"

typedef struct products products;

// SERVICE when oneDNN cannot start or memory is short.
status products_new(products **out);

// NULL is fine; sets *products to NULL.
void products_free(products **products);

#endif
