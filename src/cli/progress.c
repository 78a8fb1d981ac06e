#include "cli/progress.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/terminal.h"

static const double silent_s = 1.0, bar_every_s = 0.1, line_every_s = 10.0;

static const struct {
    const char *what, *unit;
} phases[] = {
    [DI_PHASE_LOAD] = {"loading", "tensors"},
    [DI_PHASE_PROMPT] = {"reading the prompt", "tokens"},
    [DI_PHASE_SCORE] = {"scoring", "tokens"},
};

static void draw_bar(di_progress *p, int64_t done, int64_t total) {
    enum { WIDTH = 30 };
    int full = (int)((double)done / (double)total * WIDTH);
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3d %%\033[K", phases[p->phase].what, bar,
            (int)((double)done / (double)total * 100));
    fflush(stderr);
    p->drawn = true;
}

static void show(di_progress *p, int64_t done, int64_t total, double now) {
    bool terminal = di_terminal_is(stderr);
    if (now - p->last < (terminal ? bar_every_s : line_every_s)) return;
    p->last = now;
    if (terminal) {
        draw_bar(p, done, total);
    } else {
        fprintf(stderr, "%s: %" PRId64 " of %" PRId64 " %s\n", phases[p->phase].what, done, total,
                phases[p->phase].unit);
    }
}

bool di_progress_report(void *user, di_phase phase, int64_t done, int64_t total) {
    di_progress *p = user;
    double now = di_seconds();
    if (!p->active || p->phase != phase || done == 0) {
        di_progress_end(p);
        p->active = true;
        p->phase = phase;
        p->begin = now;
        p->last = now - line_every_s; /* the first line comes as soon as the silence is over */
    }
    if (!p->quiet && total > 0 && done < total && now - p->begin > silent_s) {
        show(p, done, total, now);
    }
    if (done >= total) di_progress_end(p);
    return !di_interrupt_seen();
}

void di_progress_end(di_progress *progress) {
    if (progress->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    progress->active = progress->drawn = false;
}
