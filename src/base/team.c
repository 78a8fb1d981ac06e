/* The fork-join team. `epoch` counts the runs, and members wait for it to change; `gate` says
 * whether the run of that epoch still takes members, how many came and how many are inside. The
 * caller is done when nobody is inside and either all have come (run) or the gate is shut (share).
 *
 * Waits spin first and then sleep with a futex. A sleeper announces itself before it looks at the
 * state for the last time; a waker changes the state before it looks for sleepers. Both use
 * sequentially consistent atomics, so one of them always sees the other.
 */
#include "base/team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/futex.h"

/* About 50 us on the machines we know: longer than the gap between two operations of a step,
 * shorter than anything that a person would call busy. */
enum { DEFAULT_SPIN = 1500, MAX_THREADS = 1024 };

typedef struct member {
    di_team *team;
    pthread_t thread;
    int32_t index;
} member;

/* Fields of gate; the epoch stands above them. */
#define GATE_OPEN (UINT64_C(1) << 31)
#define GATE_ENTERED (UINT64_C(1) << 16)
#define GATE_INSIDE UINT64_C(1)

struct di_team {
    int32_t n, n_started, spin; /* n_started: threads that run, n - 1 but in a failed create */
    member *members;            /* [n]; 0 is the caller and has no thread */
    di_team_fn fn;              /* written before the gate opens, read inside */
    void *user;
    bool stop;
    /* A cache line each: waiting threads poll them. */
    _Alignas(64) _Atomic uint32_t epoch;
    _Atomic uint32_t sleepers; /* members asleep on epoch, or about to be */
    _Alignas(64) _Atomic uint64_t gate;
    _Alignas(64) _Atomic uint32_t done; /* what the caller sleeps on */
    _Atomic uint32_t caller_sleeps;
};

/* Waits until epoch differs from `seen`; returns it. */
static uint32_t wait_epoch(di_team *team, uint32_t seen) {
    uint32_t now;
    for (int32_t i = 0; i < team->spin; i++) {
        now = atomic_load_explicit(&team->epoch, memory_order_acquire);
        if (now != seen) return now;
        di_spin_turn(i);
    }
    while ((now = atomic_load(&team->epoch)) == seen) {
        atomic_fetch_add(&team->sleepers, 1);
        di_futex_wait(&team->epoch, seen);
        atomic_fetch_sub(&team->sleepers, 1);
    }
    return now;
}

/* Into the run of `epoch`, if it still takes members. */
static bool enter(di_team *team, uint32_t epoch) {
    uint64_t gate = atomic_load(&team->gate);
    while ((uint32_t)(gate >> 32) == epoch && (gate & GATE_OPEN))
        if (atomic_compare_exchange_weak(&team->gate, &gate, gate + GATE_ENTERED + GATE_INSIDE))
            return true;
    return false;
}

static void leave(di_team *team) {
    atomic_fetch_sub(&team->gate, GATE_INSIDE);
    if (atomic_load(&team->caller_sleeps) == 0) return;
    atomic_fetch_add(&team->done, 1);
    di_futex_wake_all(&team->done);
}

static void *member_main(void *arg) {
    member *self = arg;
    di_team *team = self->team;
    char name[16];
    snprintf(name, sizeof name, "di-team-%d", (int)self->index);
    pthread_setname_np(pthread_self(), name);
    uint32_t seen = 0; /* epoch at creation */
    for (;;) {
        seen = wait_epoch(team, seen);
        if (!enter(team, seen)) continue;
        if (team->stop) {
            leave(team);
            return NULL;
        }
        team->fn(team->user, self->index, team->n);
        leave(team);
    }
}

static void open_gate(di_team *team) {
    uint32_t epoch = atomic_load_explicit(&team->epoch, memory_order_relaxed) + 1;
    atomic_store(&team->gate, (uint64_t)epoch << 32 | GATE_OPEN);
    atomic_store(&team->epoch, epoch);
    if (atomic_load(&team->sleepers) > 0) di_futex_wake_all(&team->epoch);
}

/* Whether the caller may go on: `entered` members came and none is inside. */
static bool all_out(const di_team *team, int32_t entered) {
    uint64_t gate = atomic_load(&team->gate);
    return (gate & 0xFFFF) == 0 && (int32_t)(gate >> 16 & 0x7FFF) >= entered;
}

static void wait_all_out(di_team *team, int32_t entered) {
    for (int32_t i = 0; i < team->spin; i++) {
        if (all_out(team, entered)) return;
        di_spin_turn(i);
    }
    while (!all_out(team, entered)) {
        uint32_t seen = atomic_load(&team->done);
        atomic_store(&team->caller_sleeps, 1);
        if (!all_out(team, entered)) di_futex_wait(&team->done, seen);
        atomic_store(&team->caller_sleeps, 0);
    }
}

void di_team_run(di_team *team, di_team_fn fn, void *user) {
    team->fn = fn;
    team->user = user;
    if (team->n > 1) open_gate(team);
    fn(user, 0, team->n);
    if (team->n > 1) wait_all_out(team, team->n - 1);
}

void di_team_share(di_team *team, di_team_fn fn, void *user) {
    team->fn = fn;
    team->user = user;
    if (team->n > 1) open_gate(team);
    fn(user, 0, team->n);
    if (team->n == 1) return;
    atomic_fetch_and(&team->gate, ~GATE_OPEN);
    wait_all_out(team, 0);
}

di_status di_team_create(int32_t n_threads, int32_t spin, di_team **out, di_error *error) {
    *out = NULL;
    int32_t cores = di_cores_available();
    if (n_threads == 0) n_threads = cores < MAX_THREADS ? cores : MAX_THREADS;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return di_fail(error, DI_ERR_USAGE, "%d threads: give 1 to %d, or 0 for all cores",
                       (int)n_threads, (int)MAX_THREADS);
    if (spin < 0) spin = n_threads <= cores ? DEFAULT_SPIN : 0;
    di_team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (!team)
        return di_fail(error, DI_ERR_MEMORY, "no memory for a team of %d threads", (int)n_threads);
    memset(team, 0, sizeof *team);
    team->n = n_threads;
    team->spin = spin;
    team->members = calloc((size_t)n_threads, sizeof *team->members);
    if (!team->members) {
        free(team);
        return di_fail(error, DI_ERR_MEMORY, "no memory for a team of %d threads", (int)n_threads);
    }
    for (int32_t i = 1; i < n_threads; i++) {
        member *m = &team->members[i];
        m->team = team;
        m->index = i;
        int failure = pthread_create(&m->thread, NULL, member_main, m);
        if (failure) {
            di_team_destroy(team);
            return di_fail_errno(error, failure, "starting thread %d of %d", (int)i,
                                 (int)n_threads);
        }
        team->n_started = i;
    }
    *out = team;
    return DI_OK;
}

void di_team_destroy(di_team *team) {
    if (!team) return;
    team->stop = true;
    open_gate(team);
    for (int32_t i = 1; i <= team->n_started; i++) pthread_join(team->members[i].thread, NULL);
    free(team->members);
    free(team);
}

int32_t di_team_size(const di_team *team) { return team->n; }

/* Cores that a cgroup v2 file "QUOTA PERIOD" allows; INT32_MAX when there is no file or no limit.
 */
static int32_t quota_of(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return INT32_MAX;
    long long quota = 0, period = 0;
    int n = fscanf(file, "%lld %lld", &quota, &period); /* "max 100000" gives n = 0 */
    fclose(file);
    if (n != 2 || quota <= 0 || period <= 0) return INT32_MAX;
    long long cores = (quota + period - 1) / period;
    return cores > INT32_MAX ? INT32_MAX : (int32_t)cores;
}

/* The tightest quota from this process's cgroup up to the root. */
static int32_t cgroup_cores(void) {
    char line[1024], path[1200];
    int32_t cores = INT32_MAX;
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file) return cores;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        char *group = line + 3;
        group[strcspn(group, "\n")] = '\0';
        for (;;) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
            int32_t limit = quota_of(path);
            if (limit < cores) cores = limit;
            char *slash = strrchr(group, '/');
            if (!slash || group[0] == '\0') break;
            *slash = '\0';
        }
    }
    fclose(file);
    return cores;
}

int32_t di_cores_available(void) {
    cpu_set_t set;
    int32_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        cores = CPU_COUNT(&set);
    } else {
        long n = sysconf(_SC_NPROCESSORS_ONLN); /* more than CPU_SETSIZE cores */
        if (n > 0) cores = (int32_t)n;
    }
    int32_t quota = cgroup_cores();
    if (quota < cores) cores = quota;
    return cores < 1 ? 1 : cores;
}
