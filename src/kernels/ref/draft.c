/* Twins: what only the draft layers do (dspark.md 5). */
#include "kernels/ref/ref.h"

void ref_markov(di_stream *s, const di_markov_args *args) {
    int64_t vocab = args->vocab, width = args->width, rank = args->embed.k;
    REF_REQUIRE(args->proj.k == width + rank && args->head.k == rank && args->head.n == vocab);
    for (int64_t i = 0; i < args->n; i++) {
        ref_begin(s);
        int32_t prev = ref_ints(s, args->prev)[i * args->prev_stride];
        if (prev < 0) continue;
        double *joined = ref_take(s, width + rank), *bias = ref_take(s, vocab);
        const double *base = ref_doubles(s, args->base) + i * vocab;
        const double *hidden = ref_doubles(s, args->hidden) + i * args->hidden_stride * width;
        double *logits = ref_doubles(s, args->logits) + i * vocab;
        memcpy(joined, hidden, (size_t)width * sizeof *joined);
        ref_matrix_row(s, &args->embed, prev, joined + width);
        ref_linear_rows(s, &args->head, joined + width, 1, false, true, bias);
        for (int64_t v = 0; v < vocab; v++) logits[v] = ref_f(s, base[v] + bias[v]);
        ref_linear_rows(s, &args->proj, joined, 1, false, true,
                        ref_doubles(s, args->confidence) + i);
    }
}
