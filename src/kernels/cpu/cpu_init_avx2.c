/* The AVX2 family. */
#include "kernels/cpu/simd_avx2.h"

void cpu_kernels_init_avx2(cpu_kernels *kernels) {
    kernels->product = cpu_product_avx2;
    kernels->store_tile = cpu_store_tile_avx2;
    cpu_fp4_init_avx2();
    kernels->fp4_order = cpu_fp4_order_avx2;
    kernels->dots = cpu_dots_avx2;
    cpu_quant_init_avx2(kernels);
    cpu_rows_init_avx2(kernels);
    cpu_attend_init_avx2(kernels);
    cpu_peak_init_avx2(kernels);
}
