// As many multiplications as one thread can do, for the peak that rates are compared with.
#ifndef TESTS_OPS_PEAK_H
#define TESTS_OPS_PEAK_H

// Does peak_flops_f32() floating-point operations.
float peak_multiply_f32(void);
// How many.
double peak_flops_f32(void);
// Does peak_flops_bf16() operations on bfloat16 (on float32 where the processor has no such instruction).
float peak_multiply_bf16(void);
// How many.
double peak_flops_bf16(void);

#endif
