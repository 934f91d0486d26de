// Loops that multiply as fast as one thread can. Their rate is the peak that the operations are compared with.
#pragma once

// Does peak_flops_f32() floating-point operations.
float peak_multiply_f32(void);
// Returns the number of these operations.
double peak_flops_f32(void);
// Does peak_flops_bf16() operations on bfloat16 (on float32 where the processor has no such instruction).
float peak_multiply_bf16(void);
// Returns the number of these operations.
double peak_flops_bf16(void);
