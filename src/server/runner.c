#include "server/runner.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { N_CLIENTS = 4096, N_SLOW = 16 };

typedef struct job_list {
    di_job *first, *last;
} job_list;

struct di_runner {
    di_engine *engine;
    di_runner_options options;
    int32_t max_open; /* choices in the engine beyond which nothing is fed */
    pthread_t thread;

    /* The thread's. `jobs` are all that have not ended, in order of arrival, by `next`. */
    job_list jobs;
    int64_t n_waiting;           /* choices that the engine does not know yet */
    int64_t n_served[N_CLIENTS]; /* those that it has, by client; two may share one by chance */
    uint64_t turn[N_CLIENTS];    /* when a client had his last turn, by n_turns */
    uint64_t n_turns;
    uint64_t n_rows; /* of all steps so far */
    di_engine_metrics metrics;
    bool failed, was_slow; /* was_slow: the step that was just made */
    char message[300];
    double delivered; /* when the last step was; 0: none yet */

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t work;
    job_list commands; /* to be taken in, by `next_command` */
    di_job *cancels;   /* the same by `next_cancel`, in no order */
    job_list ready;    /* with something in their inbox, by `next_ready` */
    di_runner_stats stats;
    di_trace trace;
    di_slow_step slow[N_SLOW]; /* the first n_slow are to be told */
    int32_t n_slow;
    uint64_t n_lost;
    bool stopping;
};

/* ---- Taking in ---- */

void di_runner_submit(di_runner *runner, di_job *job) {
    pthread_mutex_lock(&runner->lock);
    job->next_command = NULL;
    if (runner->commands.last) {
        runner->commands.last->next_command = job;
    } else {
        runner->commands.first = job;
    }
    runner->commands.last = job;
    pthread_cond_signal(&runner->work);
    pthread_mutex_unlock(&runner->lock);
}

/* The cancellation of a job that is not taken in yet is its flag, which the thread looks at when it
 * takes it in. Each list has a link of its own: while the thread walks down what it took, a job in it may
 * already be cancelled. */
void di_runner_cancel(di_runner *runner, di_job *job) {
    pthread_mutex_lock(&runner->lock);
    if (!job->cancelled && !job->done) {
        job->cancelled = true;
        if (job->taken_in) {
            job->next_cancel = runner->cancels;
            runner->cancels = job;
        }
        pthread_cond_signal(&runner->work);
    }
    pthread_mutex_unlock(&runner->lock);
}

static void end_here(di_runner *runner, di_job *job, di_finish_reason reason, const char *message) {
    int64_t unfed = (int64_t)(job->request.n_prompts - job->n_fed) * job->request.n_choices;
    runner->n_waiting -= unfed;
    job->n_fed = job->request.n_prompts;
    di_job_end_rest(job, reason, message);
}

/* What has not ended ends; what the engine has of it, as cancelled. */
static void stop(di_runner *runner, di_job *job, di_finish_reason reason, const char *message) {
    if (job->n_open == 0) return;
    for (int32_t i = 0; i < job->n_fed; i++) {
        if (job->units[i].id) (void)di_engine_cancel(runner->engine, job->units[i].id);
    }
    end_here(runner, job, reason, message);
}

static void take_in(di_runner *runner, di_job *job) {
    job->next = NULL;
    job->metrics = &runner->metrics;
    job->n_served = &runner->n_served[job->client % N_CLIENTS];
    if (runner->jobs.last) {
        runner->jobs.last->next = job;
    } else {
        runner->jobs.first = job;
    }
    runner->jobs.last = job;
    runner->n_waiting += job->n_choices;
    if (runner->failed) end_here(runner, job, DI_REASON_FAILED, runner->message);
}

static bool goes_before(const di_runner *runner, const di_job *a, const di_job *b) {
    if (*a->n_served != *b->n_served) return *a->n_served < *b->n_served;
    return runner->turn[a->client % N_CLIENTS] < runner->turn[b->client % N_CLIENTS];
}

/* Whose turn it is: of those with something to feed the client with the least in the engine, of several
 * the one whose last turn is longest ago, and of his the one that came first. So who sends much waits for
 * himself. By arrival alone who always has something waiting would never wait for those who come anew. */
static di_job *next_to_feed(const di_runner *runner) {
    di_job *best = NULL;
    for (di_job *job = runner->jobs.first; job; job = job->next) {
        if (job->n_fed == job->request.n_prompts) continue;
        if (!best || goes_before(runner, job, best)) best = job;
    }
    return best;
}

/* Turns are taken here, not in the engine: what it has, it computes in order of arrival. So it gets little
 * more than it can run at once, but a request with all its choices. */
static void feed(di_runner *runner) {
    di_engine_stats stats = di_engine_get_stats(runner->engine);
    int64_t open = stats.waiting + stats.running;
    while (runner->n_waiting > 0 && open < runner->max_open) {
        di_job *job = next_to_feed(runner);
        di_error error;
        runner->turn[job->client % N_CLIENTS] = ++runner->n_turns;
        runner->n_waiting -= job->request.n_choices;
        open += job->request.n_choices;
        if (di_job_feed(job, runner->engine, &error) != DI_OK) {
            stop(runner, job, DI_REASON_FAILED, error.message);
        }
    }
}

/* ---- Giving back ---- */

/* Under the lock: the job is over, so nobody needs to be told to end it. */
static void forget_cancel(di_runner *runner, const di_job *job) {
    for (di_job **at = &runner->cancels; *at; at = &(*at)->next_cancel) {
        if (*at != job) continue;
        *at = job->next_cancel;
        return;
    }
}

/* Under the lock; true when the job is over, and not to be touched again. */
static bool give_back(di_runner *runner, di_job *job) {
    job->dirty = false;
    if (job->inbox.size == 0) {
        di_buffer inbox = job->inbox;
        job->inbox = job->pending;
        job->pending = inbox;
    } else {
        di_buffer_append(&job->inbox, job->pending.data, job->pending.size);
    }
    job->pending.size = 0;
    job->done = job->n_open == 0;
    if (job->done && job->cancelled) forget_cancel(runner, job);
    if (!job->ready) {
        job->ready = true;
        job->next_ready = NULL;
        if (runner->ready.last) {
            runner->ready.last->next_ready = job;
        } else {
            runner->ready.first = job;
        }
        runner->ready.last = job;
    }
    return job->done;
}

/* Returns whether there was anything. */
static bool give_back_all(di_runner *runner) {
    bool any = false;
    di_job *before = NULL;
    pthread_mutex_lock(&runner->lock);
    for (di_job *job = runner->jobs.first, *after; job; job = after) {
        after = job->next;
        if (job->dirty) {
            any = true;
            if (give_back(runner, job)) {
                if (before) {
                    before->next = after;
                } else {
                    runner->jobs.first = after;
                }
                continue;
            }
        }
        before = job;
    }
    runner->jobs.last = before;
    runner->stats.engine = di_engine_get_stats(runner->engine);
    runner->stats.engine.waiting += runner->n_waiting;
    runner->stats.metrics = runner->metrics;
    runner->stats.failed = runner->failed;
    memcpy(runner->stats.message, runner->message, sizeof runner->message);
    pthread_mutex_unlock(&runner->lock);
    return any;
}

di_job *di_runner_take(di_runner *runner, di_buffer *events, bool *done) {
    pthread_mutex_lock(&runner->lock);
    di_job *job = runner->ready.first;
    if (job) {
        runner->ready.first = job->next_ready;
        if (!runner->ready.first) runner->ready.last = NULL;
        job->ready = false;
        *done = job->done;
        di_buffer_append(events, job->inbox.data, job->inbox.size);
        if (job->inbox.failed) events->failed = true;
        job->inbox.size = 0;
    }
    pthread_mutex_unlock(&runner->lock);
    return job;
}

di_runner_stats di_runner_get_stats(di_runner *runner) {
    pthread_mutex_lock(&runner->lock);
    di_runner_stats stats = runner->stats;
    pthread_mutex_unlock(&runner->lock);
    return stats;
}

/* ---- Where the time goes ---- */

/* In di_engine_step. */
static void on_step(void *user, const di_step_trace *step) {
    di_runner *runner = user;
    double from = step->follows && runner->delivered > 0 ? runner->delivered : step->schedule;
    double seconds = step->delivered - from;
    bool slow = runner->options.slow_s > 0 && seconds > runner->options.slow_s;
    runner->delivered = step->delivered;
    runner->was_slow |= slow;
    pthread_mutex_lock(&runner->lock);
    if (runner->trace.n_max > 0) di_trace_add(&runner->trace, step);
    if (slow && runner->n_slow < N_SLOW) {
        runner->slow[runner->n_slow++] = (di_slow_step){seconds, runner->n_lost, *step};
        runner->n_lost = 0;
    } else {
        runner->n_lost += slow;
    }
    pthread_mutex_unlock(&runner->lock);
}

bool di_runner_take_slow(di_runner *runner, di_slow_step *out) {
    pthread_mutex_lock(&runner->lock);
    bool any = runner->n_slow > 0;
    if (any) {
        *out = runner->slow[0];
        runner->n_slow--;
        memmove(runner->slow, runner->slow + 1, (size_t)runner->n_slow * sizeof *runner->slow);
    }
    pthread_mutex_unlock(&runner->lock);
    return any;
}

di_status di_runner_trace(di_runner *runner, di_trace *out, di_error *error) {
    DI_TRY(di_trace_init(out, runner->options.trace_steps, error));
    pthread_mutex_lock(&runner->lock);
    memcpy(out->steps, runner->trace.steps, (size_t)out->n_max * sizeof *out->steps);
    out->n = runner->trace.n;
    pthread_mutex_unlock(&runner->lock);
    return DI_OK;
}

/* ---- The thread ---- */

static void lose_engine(di_runner *runner, const di_error *error) {
    runner->failed = true;
    snprintf(runner->message, sizeof runner->message, "the engine failed: %.250s", error->message);
    for (di_job *job = runner->jobs.first; job; job = job->next) {
        end_here(runner, job, DI_REASON_FAILED, runner->message);
    }
}

/* Waits while there is nothing to do. False: stop. */
static bool get_work(di_runner *runner, bool idle, di_job **jobs, di_job **cancels) {
    pthread_mutex_lock(&runner->lock);
    while (idle && !runner->stopping && !runner->commands.first && !runner->cancels) {
        pthread_cond_wait(&runner->work, &runner->lock);
    }
    *jobs = runner->commands.first;
    *cancels = runner->cancels;
    runner->commands = (job_list){NULL, NULL};
    runner->cancels = NULL;
    for (di_job *job = *jobs; job; job = job->next_command) {
        job->taken_in = true;
        job->cancelling = job->cancelled;
    }
    bool go = !runner->stopping;
    pthread_mutex_unlock(&runner->lock);
    return go;
}

static void count_rows(di_runner *runner) {
    uint64_t rows = di_engine_get_stats(runner->engine).rows;
    if (rows == runner->n_rows) return;
    di_histogram_add(&runner->metrics.step_rows, (double)(rows - runner->n_rows));
    runner->n_rows = rows;
}

static void *run(void *user) {
    di_runner *runner = user;
    di_job *jobs, *cancels, *after;
    bool busy = false;
    while (get_work(runner, !busy && runner->n_waiting == 0, &jobs, &cancels)) {
        di_error error;
        for (di_job *job = jobs; job; job = after) {
            after = job->next_command;
            take_in(runner, job);
            if (job->cancelling) stop(runner, job, DI_REASON_CANCELLED, NULL);
        }
        for (di_job *job = cancels; job; job = after) {
            after = job->next_cancel;
            stop(runner, job, DI_REASON_CANCELLED, NULL);
        }
        busy = false;
        if (!runner->failed) {
            feed(runner);
            if (di_engine_step(runner->engine, &busy, &error) != DI_OK) {
                busy = false;
                lose_engine(runner, &error);
            }
        }
        count_rows(runner);
        bool any = give_back_all(runner) || runner->was_slow;
        runner->was_slow = false;
        if (any) runner->options.wake(runner->options.user);
    }
    return NULL;
}

di_status di_runner_create(di_engine *engine, const di_runner_options *options, di_runner **out,
                           di_error *error) {
    di_runner *runner = calloc(1, sizeof *runner);
    if (!runner) return di_fail(error, DI_ERR_MEMORY, "out of memory: the engine's thread");
    runner->engine = engine;
    runner->options = *options;
    /* A few wait there, for places that become free while a step is made. */
    runner->max_open = options->max_batch + options->max_batch / 8 + 1;
    if (options->trace_steps > 0) {
        di_status status = di_trace_init(&runner->trace, options->trace_steps, error);
        if (status != DI_OK) {
            free(runner);
            return status;
        }
    }
    if (options->trace_steps > 0 || options->slow_s > 0) di_engine_trace(engine, on_step, runner);
    runner->metrics.step_rows.tokens = true;
    runner->stats.engine = di_engine_get_stats(engine);
    pthread_mutex_init(&runner->lock, NULL);
    pthread_cond_init(&runner->work, NULL);
    /* Signals are for the thread that waits for them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&runner->thread, NULL, run, runner);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        di_engine_trace(engine, NULL, NULL);
        di_trace_deinit(&runner->trace);
        free(runner);
        return di_fail_errno(error, failed, "cannot start the engine's thread");
    }
    *out = runner;
    return DI_OK;
}

void di_runner_destroy(di_runner *runner) {
    if (!runner) return;
    pthread_mutex_lock(&runner->lock);
    runner->stopping = true;
    pthread_cond_signal(&runner->work);
    pthread_mutex_unlock(&runner->lock);
    pthread_join(runner->thread, NULL);
    di_engine_trace(runner->engine, NULL, NULL);
    di_trace_deinit(&runner->trace);
    pthread_cond_destroy(&runner->work);
    pthread_mutex_destroy(&runner->lock);
    free(runner);
}
