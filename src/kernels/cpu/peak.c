/* Measures what the machine can do at most (peak.h). */
#include "kernels/cpu/peak.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"

enum { RUNS = 6, BUFFER_MIB = 512, MAX_MEMBERS = 1024 };

typedef struct peak_job {
    const cpu_kernels *kernels;
    float *buffer;
    int64_t n, iterations;
    double took[MAX_MEMBERS]; /* CPU seconds of each member: others may use the machine */
    _Atomic int64_t sink;     /* keeps the loops from being dropped */
} peak_job;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void read_part(void *user, int32_t member, int32_t n_members) {
    peak_job *job = user;
    int64_t each = job->n / n_members / 64 * 64;
    double start = seconds();
    float sum = job->kernels->peak_read(job->buffer + member * each, each);
    job->took[member] = seconds() - start;
    atomic_fetch_add(&job->sink, sum > 0);
}

static void fma_part(void *user, int32_t member, int32_t n_members) {
    peak_job *job = user;
    (void)n_members;
    double start = seconds();
    atomic_fetch_add(&job->sink, job->kernels->peak_fma(job->iterations) > 0);
    job->took[member] = seconds() - start;
}

static double best_time(di_team *team, di_team_fn fn, peak_job *job) {
    double best = 1e9;
    for (int i = 0; i < RUNS; i++) {
        double slowest = 0;
        di_team_run(team, fn, job);
        for (int32_t m = 0; m < di_team_size(team); m++)
            if (job->took[m] > slowest) slowest = job->took[m];
        if (slowest < best) best = slowest;
    }
    return best;
}

di_status di_cpu_peak_measure(int32_t n_threads, di_cpu_peak *out, di_error *error) {
    cpu_kernels kernels;
    di_team *team = NULL;
    if (!cpu_kernels_init(&kernels, ~0u))
        return di_fail(error, DI_ERR_UNSUPPORTED, "measuring the CPU needs AVX2 and FMA");
    DI_TRY(di_team_create(n_threads, -1, &team, error));
    peak_job job = {.kernels = &kernels, .n = (int64_t)BUFFER_MIB << 18, .iterations = 4000000};
    job.buffer = malloc((size_t)job.n * sizeof(float));
    if (!job.buffer) {
        di_team_destroy(team);
        return di_fail(error, DI_ERR_MEMORY, "no memory for a buffer of %d MiB", (int)BUFFER_MIB);
    }
    memset(job.buffer, 1, (size_t)job.n * sizeof(float)); /* zeros might stay one shared page */
    double members = di_team_size(team);
    out->read_bytes_per_s = (double)job.n * 4 / best_time(team, read_part, &job);
    out->flop_per_s = members * 192 * (double)job.iterations / best_time(team, fma_part, &job);
    free(job.buffer);
    di_team_destroy(team);
    return DI_OK;
}
