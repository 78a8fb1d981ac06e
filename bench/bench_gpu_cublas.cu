/* bench_gpu: cuBLAS, to compare with.
 *
 * The ceiling of kernels/cuda/peak.h is that of instructions alone: operands that never leave
 * shared memory, the same two tiles again and again. A product of whole matrices also moves them,
 * and its clocks fall further, since more bits change. cuBLAS is loaded by name: the program needs
 * neither it nor its headers where it is not asked for.
 */
#include <cuda_bf16.h>
#include <dlfcn.h>

#include "kernels/cuda/cuda.h"

extern "C" {
#include "bench_gpu_cublas.h"
}

static constexpr int SIDE = 8192, PRODUCTS = 64;
static constexpr size_t VALUES = static_cast<size_t>(SIDE) * SIDE;

/* Of cuBLAS's interface, the same in its versions 11 to 13. */
typedef int (*create_function)(void **handle);
typedef int (*destroy_function)(void *handle);
typedef int (*set_stream_function)(void *handle, cudaStream_t stream);
typedef int (*gemm_function)(void *handle, int trans_a, int trans_b, int m, int n, int k,
                             const void *alpha, const void *a, int type_a, int lda, const void *b,
                             int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                             int compute, int algorithm);
static constexpr int OP_N = 0, OP_T = 1, R_16BF = 14, COMPUTE_32F = 68, ANY_ALGORITHM = -1;

typedef struct cublas {
    void *library, *handle;
    create_function create;
    destroy_function destroy;
    set_stream_function set_stream;
    gemm_function gemm;
    __nv_bfloat16 *matrices[3];
    cudaStream_t stream;
    cudaEvent_t begin, end;
} cublas;

/* Two of a counter: Box and Muller's normal values from hashed numbers. */
static __global__ void fill_normal(__nv_bfloat162 *pairs, size_t n, uint32_t seed) {
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t x = (i + 1) * UINT64_C(0x9E3779B97F4A7C15) + seed;
        x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
        float u = (static_cast<float>(x >> 40) + 1) * 0x1p-24f;
        float turn = static_cast<float>(x & 0xFFFFFF) * 0x1p-23f;
        float radius = sqrtf(-2 * logf(u));
        pairs[i] = __floats2bfloat162_rn(radius * cospif(turn), radius * sinpif(turn));
    }
}

static const char *load(cublas *p) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    for (size_t i = 0; i < sizeof names / sizeof *names && p->library == NULL; i++)
        p->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (p->library == NULL) return "no libcublas.so.13, 12 or 11 where libraries are looked for";
    p->create = reinterpret_cast<create_function>(dlsym(p->library, "cublasCreate_v2"));
    p->destroy = reinterpret_cast<destroy_function>(dlsym(p->library, "cublasDestroy_v2"));
    p->set_stream = reinterpret_cast<set_stream_function>(dlsym(p->library, "cublasSetStream_v2"));
    p->gemm = reinterpret_cast<gemm_function>(dlsym(p->library, "cublasGemmEx"));
    if (!p->create || !p->destroy || !p->set_stream || !p->gemm)
        return "libcublas has not the functions that it should";
    if (p->create(&p->handle) != 0 || p->set_stream(p->handle, p->stream) != 0)
        return "libcublas does not start";
    return NULL;
}

static const char *make_matrices(cublas *p) {
    if (cudaEventCreate(&p->begin) != cudaSuccess || cudaEventCreate(&p->end) != cudaSuccess)
        return "the device has no events";
    for (uint32_t i = 0; i < 3; i++) {
        if (cudaMalloc(&p->matrices[i], VALUES * sizeof(__nv_bfloat16)) != cudaSuccess)
            return "the device has no room for its matrices";
        fill_normal<<<1024, 256, 0, p->stream>>>(reinterpret_cast<__nv_bfloat162 *>(p->matrices[i]),
                                                 VALUES / 2, i);
        /* Whatever lies there otherwise, zeros above all, is multiplied faster. */
        if (cudaGetLastError() != cudaSuccess) return "its matrices could not be filled";
    }
    if (cudaStreamSynchronize(p->stream) != cudaSuccess) return "its matrices could not be filled";
    return NULL;
}

static const char *run(cublas *p, float *ms) {
    const float one = 1, zero = 0;
    int failed = cudaEventRecord(p->begin, p->stream) != cudaSuccess;
    for (int i = 0; i < PRODUCTS; i++)
        failed |= p->gemm(p->handle, OP_T, OP_N, SIDE, SIDE, SIDE, &one, p->matrices[0], R_16BF,
                          SIDE, p->matrices[1], R_16BF, SIDE, &zero, p->matrices[2], R_16BF, SIDE,
                          COMPUTE_32F, ANY_ALGORITHM);
    failed |= cudaEventRecord(p->end, p->stream) != cudaSuccess;
    if (failed || cudaEventSynchronize(p->end) != cudaSuccess ||
        cudaEventElapsedTime(ms, p->begin, p->end) != cudaSuccess)
        return "its product failed";
    return NULL;
}

static const char *measure(cublas *p, double *flops, int runs) {
    const char *why = cudaStreamCreate(&p->stream) == cudaSuccess ? load(p) : "no stream for it";
    if (why == NULL) why = make_matrices(p);
    for (int i = -1; i < runs && why == NULL; i++) {
        float ms = 0;
        why = run(p, &ms);
        double rate = 2.0 * SIDE * SIDE * SIDE * PRODUCTS / (1e-3 * static_cast<double>(ms));
        if (i >= 0) flops[i] = rate; /* the first does not count */
    }
    return why;
}

extern "C" const char *cublas_product_flops(double *flops, int32_t runs) {
    cublas p = {};
    const char *why = measure(&p, flops, runs);
    for (int i = 0; i < 3; i++) (void)cudaFree(p.matrices[i]);
    if (p.begin) (void)cudaEventDestroy(p.begin);
    if (p.end) (void)cudaEventDestroy(p.end);
    if (p.handle) p.destroy(p.handle);
    if (p.stream) (void)cudaStreamDestroy(p.stream);
    if (p.library) (void)dlclose(p.library);
    return why;
}
