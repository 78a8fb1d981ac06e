/* Twins: Engram (model.md 5): n-gram hashes, table rows, the gate. */
#include <math.h>

#include "kernels/ref/ref.h"

/* The class of the token at `position` of row t's sequence; before the start, pad_class. */
static int64_t token_class(const di_stream *s, const di_engram_hash_args *args, int32_t t,
                           int64_t position) {
    const di_batch *b = &args->batch;
    const di_row *rows = ref_at(s, b->rows);
    int32_t slot = rows[t].slot, length = ref_ints(s, b->length)[slot], token;
    if (position < 0) return args->pad_class;
    if (position >= length) {
        token = ref_ints(s, b->token)[ref_ints(s, b->first)[t] + (position - length)];
    } else {
        token = ref_ints(s, args->history)[(int64_t)slot * args->history_slots +
                                           position % args->history_slots];
    }
    return ref_ints(s, args->token_map)[token];
}

static void hash_row(const di_stream *s, const di_engram_hash_args *args, int32_t layer,
                     const int64_t *classes, int64_t *out) {
    int32_t columns = (args->max_ngram - 1) * args->n_heads;
    const int64_t *m = (const int64_t *)ref_at(s, args->multipliers) + layer * args->max_ngram;
    const int64_t *primes = (const int64_t *)ref_at(s, args->primes) + layer * columns;
    const int64_t *offsets = (const int64_t *)ref_at(s, args->offsets) + layer * columns;
    int64_t hash = classes[0] * m[0];
    for (int32_t n = 1; n < args->max_ngram; n++) {
        hash ^= classes[n] * m[n];
        for (int32_t h = 0; h < args->n_heads; h++) {
            int32_t column = (n - 1) * args->n_heads + h;
            out[column] = hash % primes[column] + offsets[column];
        }
    }
}

void ref_engram_hash(di_stream *s, const di_engram_hash_args *args) {
    const di_batch *b = &args->batch;
    int32_t columns = (args->max_ngram - 1) * args->n_heads;
    REF_REQUIRE(args->max_ngram >= 1 && args->max_ngram <= DI_OPS_MAX_NGRAM);
    for (int32_t t = 0; t < b->n_rows; t++) {
        int64_t classes[DI_OPS_MAX_NGRAM];
        int32_t pos = ref_ints(s, b->pos)[t];
        if (pos < 0) continue;
        for (int32_t k = 0; k < args->max_ngram; k++) {
            classes[k] = token_class(s, args, t, (int64_t)pos - k);
        }
        for (int32_t layer = 0; layer < args->n_layers; layer++) {
            int64_t *out =
                (int64_t *)ref_at(s, args->table_rows) + ((int64_t)layer * b->n_rows + t) * columns;
            hash_row(s, args, layer, classes, out);
        }
    }
}

void ref_engram_rows(di_stream *s, const di_engram_rows_args *args) {
    int64_t width = args->width, blocks = width / 32;
    for (int32_t t = 0; t < args->n_rows; t++) {
        if (!ref_none(args->pos) && ref_ints(s, args->pos)[t] < 0) continue;
        for (int32_t c = 0; c < args->n_columns; c++) {
            int64_t column = (int64_t)t * args->n_columns + c;
            int64_t row = ((const int64_t *)ref_at(s, args->table_rows))[column];
            ref_dequantize_vector(DI_Q8, ref_bytes(s, args->codes) + row * width,
                                  ref_bytes(s, args->scales) + row * blocks, width,
                                  ref_doubles(s, args->out) + column * width);
        }
    }
}

/* One stream of one row: its gate, and stream = a(stream + gate * value). */
static double gate_stream(const di_stream *s, const di_engram_gate_args *args, const double *q,
                          const double *k, const double *key, const double *value, double *stream) {
    int64_t width = args->width;
    double dot = 0;
    for (int64_t d = 0; d < width; d++) dot += stream[d] * (q[d] * k[d]) * key[d];
    dot /= sqrt(ref_mean_square(stream, width) + args->eps) *
           sqrt(ref_mean_square(key, width) + args->eps);
    dot *= 1 / sqrt((double)width);
    double gate = ref_f(s, ref_sigmoid(copysign(sqrt(fmax(fabs(dot), 1e-6)), dot)));
    for (int64_t d = 0; d < width; d++) stream[d] = ref_a(s, stream[d] + gate * value[d]);
    return gate;
}

void ref_engram_gate(di_stream *s, const di_engram_gate_args *args) {
    ref_begin(s);
    int64_t width = args->width, hc = args->hc;
    double *q = ref_take(s, width), *k = ref_take(s, width);
    for (int64_t j = 0; j < hc; j++) {
        ref_matrix_row(s, &args->q_weight, j, q);
        ref_matrix_row(s, &args->k_weight, j, k);
        for (int64_t t = 0; t < args->n_rows; t++) {
            const double *kv = ref_doubles(s, args->kv) + t * (hc + 1) * width;
            double *stream = ref_doubles(s, args->streams) + (t * hc + j) * width;
            double gate = gate_stream(s, args, q, k, kv + j * width, kv + hc * width, stream);
            if (!ref_none(args->gate)) ref_doubles(s, args->gate)[t * hc + j] = gate;
        }
    }
}
