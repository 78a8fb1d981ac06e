#include "support/release_vectors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

void release_open(release_file *file, const char *directory) {
    char path[1024];
    di_error error;
    snprintf(path, sizeof path, "%s/%s/model/config.json", DI_SOURCE_DIR, directory);
    must(di_config_load(path, &file->config, &error), &error);
    snprintf(path, sizeof path, "%s/%s/model", DI_SOURCE_DIR, directory);
    must(di_checkpoint_open(path, &file->config, &file->checkpoint, &error), &error);
    snprintf(path, sizeof path, "%s/%s/golden_release.safetensors", DI_SOURCE_DIR, directory);
    must(di_safetensors_open(path, &file->vectors, &error), &error);
    snprintf(path, sizeof path, "%s/%s/golden.safetensors", DI_SOURCE_DIR, directory);
    must(di_safetensors_open(path, &file->golden, &error), &error);
}

void release_close(release_file *file) {
    di_safetensors_close(file->golden);
    di_safetensors_close(file->vectors);
    di_checkpoint_close(file->checkpoint);
}

/* "p33/release.<scope>.<op>.<part>" -> scope and op, returns part; NULL: not an operation's. */
static const char *split_name(const char *name, release_op *op) {
    static const char head[] = "p33/release.";
    if (strncmp(name, head, sizeof head - 1) != 0) return NULL;
    const char *scope = name + sizeof head - 1, *first = strchr(scope, '.');
    const char *second = first == NULL ? NULL : strchr(first + 1, '.');
    if (second == NULL) return NULL; /* positions, ids, draft.ids */
    snprintf(op->scope, sizeof op->scope, "%.*s", (int)(first - scope), scope);
    snprintf(op->op, sizeof op->op, "%.*s", (int)(second - first - 1), first + 1);
    return second + 1;
}

int release_list(const release_file *file, release_op *out) {
    int n = 0;
    for (int64_t i = 0; i < di_safetensors_count(file->vectors); i++) {
        release_op op;
        bool known = split_name(di_safetensors_at(file->vectors, i)->name, &op) == NULL;
        for (int j = 0; j < n && !known; j++) {
            known = strcmp(out[j].scope, op.scope) == 0 && strcmp(out[j].op, op.op) == 0;
        }
        if (known) continue;
        assert_true(n < RELEASE_MAX_OPS);
        out[n++] = op;
    }
    return n;
}

/* NULL: of all operations. */
static int64_t count_outputs(const release_file *file, const release_op *of) {
    int64_t n = 0;
    for (int64_t i = 0; i < di_safetensors_count(file->vectors); i++) {
        release_op op;
        const char *part = split_name(di_safetensors_at(file->vectors, i)->name, &op);
        if (part == NULL || strncmp(part, "out", 3) != 0 || strstr(part, "near") != NULL) continue;
        n += of == NULL || (strcmp(of->scope, op.scope) == 0 && strcmp(of->op, op.op) == 0);
    }
    return n;
}

int64_t release_count_outputs(const release_file *file) { return count_outputs(file, NULL); }

int64_t release_count_outputs_of(const release_file *file, const release_op *op) {
    return count_outputs(file, op);
}

const di_tensor *release_find(const release_file *file, const release_op *op, const char *part) {
    char name[128];
    snprintf(name, sizeof name, "p33/release.%s.%s.%s", op->scope, op->op, part);
    return di_safetensors_find(file->vectors, name);
}

const di_tensor *release_part(const release_file *file, const release_op *op, const char *part) {
    const di_tensor *tensor = release_find(file, op, part);
    if (tensor == NULL) fail_msg("%s.%s has no part %s", op->scope, op->op, part);
    return tensor;
}

int64_t release_count(const di_tensor *tensor) {
    int64_t n = 1;
    for (int32_t i = 0; i < tensor->n_dims; i++) n *= tensor->shape[i];
    return n;
}

const float *release_floats(const di_tensor *tensor) {
    if (tensor->dtype != DI_F32) fail_msg("%s is not F32", tensor->name);
    return (const float *)(const void *)tensor->data;
}

int32_t *release_ints(const di_tensor *tensor) {
    int64_t n = release_count(tensor);
    int32_t *out = malloc((size_t)(n + 1) * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < n; i++) {
        int64_t wide;
        int16_t half;
        if (tensor->dtype == DI_I64) {
            memcpy(&wide, tensor->data + 8 * i, 8);
            out[i] = (int32_t)wide;
        } else if (tensor->dtype == DI_I32) {
            memcpy(&out[i], tensor->data + 4 * i, 4);
        } else if (tensor->dtype == DI_I16) {
            memcpy(&half, tensor->data + 2 * i, 2);
            out[i] = half;
        } else if (tensor->dtype == DI_U8) {
            out[i] = tensor->data[i];
        } else {
            fail_msg("%s is not an integer tensor", tensor->name);
        }
    }
    return out;
}

/* ---- The rule ---- */

static void complain(release_score *score, const char *name, const char *format, ...) {
    if (score->failures++ > 0) return;
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(score->first, sizeof score->first, "%s: %s", name, text);
}

static release_kind *kind_of(release_score *score, const char *name) {
    for (int i = 0; i < score->n_kinds; i++) {
        if (strcmp(score->kinds[i].name, name) == 0) return &score->kinds[i];
    }
    assert_true(score->n_kinds < 128);
    release_kind *kind = &score->kinds[score->n_kinds++];
    snprintf(kind->name, sizeof kind->name, "%s", name);
    kind->share = 0.995;
    return kind;
}

/* Place of a value on the BF16 grid, so that neighbours differ by 1. */
static int32_t order(double value) {
    int32_t word = di_bf16_encode((float)value);
    return word & 0x8000 ? -(word & 0x7FFF) : word;
}

/* An output that was never rounded is close to every expected value: only its own bits tell. */
static bool on_bf16_grid(double value) { return (double)di_bf16_round((float)value) == value; }

void release_compare_bf16(release_score *score, const char *name, const char *kind_name,
                          const float *want, const double *got, int64_t rows, int64_t width) {
    release_kind *kind = kind_of(score, kind_name);
    score->outputs++;
    kind->size += rows * width;
    for (int64_t r = 0; r < rows; r++) {
        double largest = 0;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            if (isfinite(want[i])) largest = fmax(largest, fabs((double)want[i]));
        }
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            double off = fabs((double)want[i] - got[i]);
            if (!isfinite(want[i]) || !isfinite(got[i])) {
                if ((double)want[i] != got[i]) {
                    complain(score, name, "element %lld is %g, expected %g", (long long)i, got[i],
                             (double)want[i]);
                } else {
                    kind->equal++;
                }
                continue;
            }
            if (!on_bf16_grid(got[i])) {
                complain(score, name, "element %lld is %.9g, which is not rounded to BF16",
                         (long long)i, got[i]);
            }
            int32_t steps = abs(order((double)want[i]) - order(got[i]));
            kind->equal += steps == 0;
            if (steps > 1 && off > 1e-6 * largest) {
                complain(score, name, "element %lld is %g, expected %g: %d BF16 steps",
                         (long long)i, got[i], (double)want[i], steps);
            }
        }
    }
}

void release_compare_f32(release_score *score, const char *name, const float *want,
                         const double *got, int64_t n) {
    double largest = 1e-30;
    score->outputs++;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(want[i])) largest = fmax(largest, fabs((double)want[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) && (double)want[i] == got[i]) continue;
        if (isfinite(got[i]) && (double)(float)got[i] != got[i]) {
            complain(score, name, "element %lld is %.17g, which is no float32", (long long)i,
                     got[i]);
        }
        double off = fabs((double)want[i] - got[i]) / largest;
        if (off > score->worst_f32) score->worst_f32 = off;
        if (!(off <= 1e-5)) {
            complain(score, name, "element %lld is %.9g, expected %.9g", (long long)i, got[i],
                     (double)want[i]);
        }
    }
}

void release_compare_codes(release_score *score, const char *name, const uint8_t *want,
                           const uint8_t *got, const uint8_t *near, int64_t n) {
    score->outputs++;
    for (int64_t i = 0; i < n; i++) {
        if (want[i] == got[i] || (near != NULL && near[i] == 1)) continue;
        complain(score, name, "code %lld is %d, expected %d", (long long)i, got[i], want[i]);
    }
}

static int code_order(int code, int sign) { return code & sign ? -(code & (sign - 1)) : code; }

void release_compare_fused(release_score *score, const char *name, const char *kind_name,
                           const uint8_t *want, const uint8_t *got, int sign, double share,
                           int64_t n) {
    release_kind *kind = kind_of(score, kind_name);
    score->outputs++;
    kind->size += n;
    kind->share = share;
    for (int64_t i = 0; i < n; i++) {
        int off = abs(code_order(want[i], sign) - code_order(got[i], sign));
        kind->equal += off == 0;
        if (off <= 1) continue;
        complain(score, name, "code %lld is %d, expected %d", (long long)i, got[i], want[i]);
    }
}

void release_compare_ints(release_score *score, const char *name, const int32_t *want,
                          const int32_t *got, int64_t n) {
    score->outputs++;
    for (int64_t i = 0; i < n; i++) {
        if (want[i] == got[i]) continue;
        complain(score, name, "element %lld is %d, expected %d", (long long)i, got[i], want[i]);
    }
}

int64_t release_finish(release_score *score) {
    for (int i = 0; i < score->n_kinds; i++) {
        const release_kind *kind = &score->kinds[i];
        if ((double)kind->equal < kind->share * (double)kind->size) {
            complain(score, kind->name, "%lld of %lld values equal", (long long)kind->equal,
                     (long long)kind->size);
        }
    }
    return score->failures;
}
