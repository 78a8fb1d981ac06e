/* Twins: the head. */
#include "kernels/ref/ref.h"

void ref_head(di_stream *s, const di_head_args *args) {
    ref_begin(s);
    int64_t width = args->width, hc = args->hc;
    double *normed =
        ref_none(args->normed) ? ref_take(s, args->n_out * width) : ref_doubles(s, args->normed);
    for (int64_t i = 0; i < args->n_out; i++) {
        int64_t row = ref_ints(s, args->which)[i];
        double *x = normed + i * width;
        ref_collapse_row(s, ref_doubles(s, args->streams) + row * hc * width,
                         ref_doubles(s, args->pre) + row * hc, args->hc, width, x);
        ref_norm_row(s, x, width, args->eps, &args->norm, x);
    }
    ref_linear_rows(s, &args->head, normed, args->n_out, false, true, ref_doubles(s, args->logits));
}
