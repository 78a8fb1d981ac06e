/* A libcuda.so.1 for machines without one: a driver of a chosen age that finds no GPU, or fails. The CUDA runtime asks
 * these two first, and goes on only with a driver that it can work with.
 *
 *     STUB_DRIVER_VERSION   as cuDriverGetVersion gives it: 12040 is CUDA 12.4; 0: there is none
 *     STUB_DRIVER_INIT      what cuInit gives: a CUresult; unset: that there is no device
 */
#include <stdlib.h>

enum { SUCCESS = 0, NO_DEVICE = 100 }; /* of CUresult */

int cuInit(unsigned int flags);
int cuDriverGetVersion(int *version);

int cuInit(unsigned int flags) {
    const char *text = getenv("STUB_DRIVER_INIT");
    (void)flags;
    return text ? atoi(text) : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    const char *text = getenv("STUB_DRIVER_VERSION");
    *version = text ? atoi(text) : 0;
    return SUCCESS;
}
