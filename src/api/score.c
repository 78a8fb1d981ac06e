/* Scores: every row of every step asks for its logits, and the residual streams are taken from the
 * step on their way through the layers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"

typedef struct score {
    di_sequence *sequence;
    const di_score_sink *sink;
    const int32_t *ids;
    size_t n;
    int32_t chunk, n_layers;
    int64_t vocab, width; /* width: values of all streams of a row */
    float *logits;        /* [chunk][vocab] */
    float *logprobs;      /* [chunk + 1] */
    uint8_t *taken;       /* [n_layers][chunk][width] of the backend's A; NULL: not wanted */
    float *streams;       /* [chunk][width] */
} score;

/* Called while the step is being enqueued: the download comes right behind the layer. */
static void take_streams(void *user, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                         int64_t n_rows, int64_t row_width) {
    score *s = user;
    (void)type;
    if (layer < 0 || layer >= s->n_layers || strcmp(name, "streams") != 0) return;
    di_backend *backend = s->sequence->engine->backend;
    uint64_t row_bytes = (uint64_t)s->width * backend->a_bytes;
    uint8_t *to = s->taken + (uint64_t)layer * (uint64_t)s->chunk * row_bytes;
    backend->download(backend->stream, to, data, (uint64_t)(n_rows * row_width) * backend->a_bytes);
}

/* n activations of 2 (bf16), 4 or 8 bytes as float. */
static void widen(float *out, const uint8_t *in, int64_t n, uint32_t bytes) {
    for (int64_t i = 0; i < n; i++, in += bytes) {
        if (bytes == 8) {
            double value;
            memcpy(&value, in, 8);
            out[i] = (float)value;
        } else {
            uint32_t bits = 0;
            memcpy((uint8_t *)&bits + (4 - bytes), in,
                   bytes); /* little-endian: bf16 is the top half */
            memcpy(&out[i], &bits, 4);
        }
    }
}

static float log_softmax_at(const float *logits, int64_t n, int32_t at) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((double)logits[i] > max) max = (double)logits[i];
    }
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return (float)((double)logits[at] - max - log(sum));
}

/* Rows [first, first + n) predict the ids behind them: with row 0 comes position 0, which nothing
 * predicts. */
static di_status report_logprobs(score *s, size_t first, int32_t n, di_error *error) {
    if (!s->sink->logprobs) return DI_OK;
    int64_t count = 0;
    if (first == 0) s->logprobs[count++] = NAN;
    for (int32_t i = 0; i < n && first + (size_t)i + 1 < s->n; i++) {
        size_t position = first + (size_t)i + 1;
        float logprob =
            log_softmax_at(s->logits + (int64_t)i * s->vocab, s->vocab, s->ids[position]);
        if (!isfinite(logprob)) {
            return di_fail(error, DI_ERR_INVALID,
                           "token %zu cannot be scored: the logits before it are not finite "
                           "numbers; the weights may be damaged",
                           position);
        }
        s->logprobs[count++] = logprob;
    }
    if (count == 0) return DI_OK;
    int64_t position = first == 0 ? 0 : (int64_t)first + 1;
    return s->sink->logprobs(s->sink->user, position, count, s->logprobs, error);
}

static di_status report_streams(score *s, size_t first, int32_t n, di_error *error) {
    if (!s->taken) return DI_OK;
    uint32_t a_bytes = s->sequence->engine->backend->a_bytes;
    uint64_t layer_bytes = (uint64_t)s->chunk * (uint64_t)s->width * a_bytes;
    for (int32_t layer = 0; layer < s->n_layers; layer++) {
        widen(s->streams, s->taken + (uint64_t)layer * layer_bytes, n * s->width, a_bytes);
        DI_TRY(s->sink->streams(s->sink->user, layer, (int64_t)first, n, s->streams, error));
    }
    return DI_OK;
}

static di_status step(score *s, size_t first, int32_t n, di_error *error) {
    di_engine *engine = s->sequence->engine;
    di_sequence_rows(s->sequence, n);
    for (int32_t i = 0; i < n; i++) engine->out_rows[i] = i;
    di_step rows = {.rows = engine->rows, .n_rows = n, .out_rows = engine->out_rows, .n_out = n};
    DI_TRY(di_forward(engine->context, &rows, error));
    DI_TRY(di_context_read_logits(engine->context, s->logits, error));
    DI_TRY(report_logprobs(s, first, n, error));
    if (s->sink->logits) {
        DI_TRY(s->sink->logits(s->sink->user, (int64_t)first, n, s->logits, error));
    }
    return report_streams(s, first, n, error);
}

static di_status all_steps(score *s, di_error *error) {
    const di_engine *engine = s->sequence->engine;
    for (size_t at = 0; at < s->n;) {
        DI_TRY(di_engine_report(engine, DI_PHASE_SCORE, (int64_t)at, (int64_t)s->n, error));
        int32_t n = s->n - at < (size_t)s->chunk ? (int32_t)(s->n - at) : s->chunk;
        DI_TRY(step(s, at, n, error));
        at += (size_t)n;
    }
    return di_engine_report(engine, DI_PHASE_SCORE, (int64_t)s->n, (int64_t)s->n, error);
}

uint64_t di_score_row_bytes(const di_config *config, const di_backend *backend) {
    uint64_t width = (uint64_t)config->hc_mult * (uint64_t)config->hidden_size;
    uint64_t taken = (uint64_t)config->num_hidden_layers * width * backend->a_bytes;
    return ((uint64_t)config->vocab_size + 2 + width) * sizeof(float) + taken;
}

static di_status take_buffers(score *s, di_error *error) {
    size_t chunk = (size_t)s->chunk, width = (size_t)s->width;
    s->logits = malloc(chunk * (size_t)s->vocab * sizeof *s->logits);
    s->logprobs = malloc((chunk + 1) * sizeof *s->logprobs);
    bool ok = s->logits && s->logprobs;
    if (s->sink->streams) {
        uint32_t a_bytes = s->sequence->engine->backend->a_bytes;
        s->taken = malloc((size_t)s->n_layers * chunk * width * a_bytes);
        s->streams = malloc(chunk * width * sizeof *s->streams);
        ok = ok && s->taken && s->streams;
    }
    return ok ? DI_OK : di_fail(error, DI_ERR_MEMORY, "out of memory: buffers of the score");
}

/* The prompt's own checks, and the sequence with these ids and nothing computed. */
static di_status begin(di_sequence *sequence, const int32_t *ids, size_t n, di_error *error) {
    DI_TRY(di_sequence_check(sequence->engine, ids, n, error));
    di_sequence_clear(sequence);
    sequence->n_prompt = n;
    return di_ids_append(&sequence->ids, ids, n, error);
}

di_status di_sequence_score(di_sequence *sequence, const int32_t *ids, size_t n,
                            const di_score_sink *sink, di_error *error) {
    di_engine *engine = sequence->engine;
    const di_config *config = di_model_config(engine->model);
    DI_TRY(begin(sequence, ids, n, error));
    score s = {.sequence = sequence,
               .sink = sink,
               .ids = sequence->ids.data,
               .n = n,
               .chunk = engine->memory.score_rows,
               .n_layers = config->num_hidden_layers,
               .vocab = config->vocab_size,
               .width = (int64_t)config->hc_mult * config->hidden_size};
    di_status status;
    DI_TRY_DONE(take_buffers(&s, error));
    if (s.taken) di_context_set_tap(engine->context, take_streams, &s);
    status = all_steps(&s, error);
    di_context_set_tap(engine->context, NULL, NULL);
done:
    if (status != DI_OK) {
        di_error ignored;
        (void)di_backend_sync(engine->backend, &ignored); /* downloads may still be on their way */
        di_sequence_cut(sequence);
    }
    free(s.logits);
    free(s.logprobs);
    free(s.taken);
    free(s.streams);
    return status;
}
