/* bench_gpu: time by operation, by a table of operations that put stamps around those of the
 * backend.
 *
 * A stamp is only true when the device is behind the host: else what lies between two of them is
 * the time that the host took to launch kernels. So a piece of calls is measured at a time, behind
 * something that keeps the device busy until all of them are enqueued. What two stamps with nothing
 * between them measure is subtracted.
 */
#include <stdio.h>
#include <string.h>

#include "bench_gpu.h"
#include "bench_ops.h"

enum { PIECE = 60, MAX_CALLS = 1 << 16, MAX_RUNS = 9, TRIES = 4 };

static bench *measured;
static const di_ops *real_ops;
static bool stalls;
static int32_t n_calls, from, to; /* calls of this run; those that are measured */
static int32_t op_of[MAX_CALLS];
static double begins[MAX_CALLS], ends[MAX_CALLS];
static double host_begin, host_end, stall_begin; /* of a piece; the last by the device's clock */
static int32_t n_behind; /* pieces whose launches the host did not finish in time */
static double op_us[MAX_COLUMNS][N_OPS];
static int32_t op_calls[MAX_COLUMNS][N_OPS];

static int32_t begin_call(di_stream *stream, int32_t op) {
    int32_t call = n_calls++;
    if (call < from || call >= to) return -1;
    if (call == from && stalls) {
        measured->backend->stamp(stream, &stall_begin);
        host_begin = now_s();
        stall(measured);
    }
    op_of[call] = op;
    measured->backend->stamp(stream, &begins[call]);
    return call;
}

static void end_call(di_stream *stream, int32_t call) {
    if (call < 0) return;
    measured->backend->stamp(stream, &ends[call]);
    if (call + 1 == to) host_end = now_s();
}

#define OP_TIMED(name)                                                                             \
    static void timed_##name(di_stream *stream, const di_##name##_args *args) {                    \
        int32_t call = begin_call(stream, OP_##name);                                              \
        real_ops->name(stream, args);                                                              \
        end_call(stream, call);                                                                    \
    }
DI_EACH_OP(OP_TIMED)
#undef OP_TIMED
#define OP_ENTRY(name) .name = timed_##name,
static const di_ops timed_ops = {DI_EACH_OP(OP_ENTRY)};
#undef OP_ENTRY

/* Microseconds between two stamps with nothing between them. */
static double empty_us(bench *b) {
    double us[PIECE];
    stall(b);
    for (int i = 0; i < PIECE; i++) {
        b->backend->stamp(b->backend->stream, &begins[i]);
        b->backend->stamp(b->backend->stream, &ends[i]);
    }
    must(b, di_backend_sync(b->backend, &b->error));
    for (int i = 0; i < PIECE; i++) us[i] = (ends[i] - begins[i]) * 1e6;
    return quartiles_of(us, PIECE).median;
}

static void run_once(bench *b, int32_t first, int32_t end, profile_run run, void *user) {
    n_calls = 0;
    from = first;
    to = end;
    run(user);
    must(b, di_backend_sync(b->backend, &b->error));
    if (n_calls > MAX_CALLS) stop("more calls of operations than the profile has room for");
}

/* All calls once; a piece again, behind a longer stall, when the host was too slow for it. */
static void run_pieces(bench *b, int32_t all, profile_run run, void *user) {
    int32_t piece = stalls && b->backend->device ? PIECE : all;
    for (int32_t first = 0, end; first < all; first = end) {
        end = first + piece < all ? first + piece : all;
        bool behind = true;
        for (int tries = 0; behind && tries < TRIES; tries++) {
            run_once(b, first, end, run, user);
            behind = piece < all && host_end - host_begin > begins[first] - stall_begin;
            if (behind) stall_longer();
        }
        n_behind += behind;
    }
}

void profile_measure(bench *b, int32_t column, profile_run run, void *user, int32_t repeats,
                     bool pieces) {
    bool (*record)(di_stream *, const uint64_t[2]) = b->backend->record;
    double nothing = empty_us(b);
    static double us[MAX_RUNS][N_OPS];
    memset(op_calls[column], 0, sizeof op_calls[column]);
    measured = b;
    real_ops = b->backend->ops;
    stalls = pieces;
    b->backend->ops = &timed_ops;
    b->backend->record = NULL;
    run_once(b, 0, 0, run, user);
    int32_t all = n_calls;
    if (repeats > MAX_RUNS) repeats = MAX_RUNS;
    for (int32_t i = 0; i < repeats; i++) {
        memset(us[i], 0, sizeof us[i]);
        run_pieces(b, all, run, user);
        for (int32_t call = 0; call < all; call++) {
            double spent = (ends[call] - begins[call]) * 1e6 - nothing;
            us[i][op_of[call]] += spent > 0 ? spent : 0;
            op_calls[column][op_of[call]] += i == 0;
        }
    }
    for (int32_t op = 0; op < N_OPS; op++) {
        double of_op[MAX_RUNS];
        for (int32_t i = 0; i < repeats; i++) of_op[i] = us[i][op];
        op_us[column][op] = quartiles_of(of_op, repeats).median;
    }
    b->backend->ops = real_ops;
    b->backend->record = record;
}

void profile_print(const char *const headings[], int32_t n) {
    double sums[MAX_COLUMNS] = {0};
    printf("  by operation, us (share; calls), without graphs, each call by itself:\n    %-14s",
           "");
    for (int32_t i = 0; i < n; i++) {
        printf(" %21s", headings[i]);
        for (int32_t op = 0; op < N_OPS; op++) sums[i] += op_us[i][op];
    }
    for (int32_t op = 0; op < N_OPS; op++) {
        bool called = false;
        for (int32_t i = 0; i < n; i++) called |= op_calls[i][op] > 0;
        if (!called) continue;
        printf("\n    %-14s", op_names[op]);
        for (int32_t i = 0; i < n; i++)
            printf(" %10.1f (%4.1f%% %3d)", op_us[i][op], 100 * op_us[i][op] / sums[i],
                   (int)op_calls[i][op]);
    }
    printf("\n    %-14s", "all");
    for (int32_t i = 0; i < n; i++) printf(" %10.1f            ", sums[i]);
    printf("\n");
    if (n_behind > 0) {
        printf("    the host was too slow for %d pieces of calls: their times are too long\n",
               (int)n_behind);
        n_behind = 0;
    }
    fflush(stdout);
}
