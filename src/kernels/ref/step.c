/* Twins: the rows of a step, the token history, lengths, the embedding. */
#include "kernels/ref/ref.h"

void ref_step_begin(di_stream *s, const di_step_begin_args *args) {
    const di_batch *b = &args->batch;
    const di_row *rows = ref_at(s, b->rows);
    const int32_t *length = ref_ints(s, b->length), *n_valid = ref_ints(s, b->n_valid);
    const int32_t *next_token = ref_ints(s, b->next_token);
    for (int32_t t = 0; t < b->n_rows; t++) {
        int32_t slot = rows[t].slot, offset = rows[t].offset;
        REF_REQUIRE(slot >= 0 && slot < b->n_slots);
        ref_ints(s, b->pos)[t] = offset < n_valid[slot] ? length[slot] + offset : -1;
        ref_ints(s, b->first)[t] = t - offset; /* rows of a slot are contiguous */
        ref_ints(s, b->token)[t] =
            rows[t].token == DI_TOKEN_NEXT ? next_token[slot] : rows[t].token;
    }
}

void ref_step_end(di_stream *s, const di_step_end_args *args) {
    const di_batch *b = &args->batch;
    const di_row *rows = ref_at(s, b->rows);
    int32_t *n_valid = ref_ints(s, b->n_valid);
    for (int32_t t = 0; t < b->n_rows; t++) {
        int32_t pos = ref_ints(s, b->pos)[t], slot = rows[t].slot;
        if (pos < 0 || rows[t].offset >= n_valid[slot]) continue;
        int64_t at = (int64_t)slot * args->history_slots + pos % args->history_slots;
        ref_ints(s, args->history)[at] = ref_ints(s, b->token)[t];
        ref_ints(s, b->length)[slot] += 1;
    }
    for (int32_t t = 0; t < b->n_rows; t++) n_valid[rows[t].slot] = INT32_MAX;
}

void ref_rewind(di_stream *s, const di_rewind_args *args) {
    for (int32_t i = 0; i < args->n_slots; i++) {
        ref_ints(s, args->length)[i] -= ref_ints(s, args->count)[i];
    }
}

void ref_embed(di_stream *s, const di_embed_args *args) {
    ref_begin(s);
    const di_batch *b = &args->batch;
    int64_t width = args->embed.k;
    double *row = ref_take(s, width);
    for (int32_t t = 0; t < b->n_rows; t++) {
        if (ref_ints(s, b->pos)[t] < 0) continue;
        ref_matrix_row(s, &args->embed, ref_ints(s, b->token)[t], row);
        for (int32_t j = 0; j < args->hc; j++) {
            double *stream = ref_doubles(s, args->streams) + ((int64_t)t * args->hc + j) * width;
            memcpy(stream, row, (size_t)width * sizeof *row);
            ref_doubles(s, args->pre)[(int64_t)t * args->hc + j] = j == 0 ? 1 : 0;
        }
    }
}
