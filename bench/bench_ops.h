/* Every operation's number and name, for tables of times. */
#ifndef DI_BENCH_OPS_H
#define DI_BENCH_OPS_H

#include "kernels/ops.h"

enum {
#define OP_INDEX(name) OP_##name,
    DI_EACH_OP(OP_INDEX)
#undef OP_INDEX
        N_OPS
};
#define OP_NAME(name) #name,
static const char *const op_names[N_OPS] = {DI_EACH_OP(OP_NAME)};
#undef OP_NAME

#endif
