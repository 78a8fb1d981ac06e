/* Small functions in headers, for both sides of a GPU: where a CUDA compiler reads the header they
 * are compiled for the host and for the device, so that each formula stands once. */
#ifndef DI_BASE_INLINE_H
#define DI_BASE_INLINE_H

#ifdef __CUDACC__
#define DI_INLINE static inline __host__ __device__
#else
#define DI_INLINE static inline
#endif

#endif
