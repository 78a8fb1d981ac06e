/* A team of threads that computes together: fork and join, nothing else.
 *
 * Created once; the caller is member 0. di_team_run calls fn(user, i, n) on every member and
 * returns when all are done. A member that waits spins at most `spin` iterations and then sleeps on
 * a futex: spinning is poison when threads outnumber cores. One caller at a time.
 */
#ifndef DI_BASE_TEAM_H
#define DI_BASE_TEAM_H

#include <stdint.h>

#include "base/error.h"

typedef struct di_team di_team;

/* n_threads 0: as many as cores this process may run on (sched_getaffinity and the cgroup's quota).
 * spin -1: spin briefly when every thread has a core to itself, else 0. */
di_status di_team_create(int32_t n_threads, int32_t spin, di_team **out, di_error *error);
void di_team_destroy(di_team *team); /* NULL is fine */
int32_t di_team_size(const di_team *team);

typedef void (*di_team_fn)(void *user, int32_t member, int32_t n_members);
void di_team_run(di_team *team, di_team_fn fn, void *user);

/* For work that fn takes in pieces until none is left: calls fn on the caller and on every member
 * that comes before the caller is done, at most once each, and returns when all those are. A member
 * that the system does not let run holds nobody up. */
void di_team_share(di_team *team, di_team_fn fn, void *user);

/* Cores this process may use, at least 1. */
int32_t di_cores_available(void);

#endif
