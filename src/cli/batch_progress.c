#include "cli/batch_progress.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/terminal.h"

static const double silent_s = 1.0, bar_every_s = 0.1, line_every_s = 10.0;

static const char *what_of(const di_batch_progress *p) { return p->what ? p->what : "requests"; }

void di_batch_progress_begin(di_batch_progress *p, int64_t total, int64_t before) {
    p->total = total;
    p->before = before;
    p->begin = di_seconds();
    p->last = p->begin - line_every_s; /* the first line comes as soon as the silence is over */
}

/* "12.3 requests/s, 456 tokens/s, 0:01:02 left" */
static void print_rate(const di_batch_progress *p, int64_t done, int64_t n_tokens, double seconds) {
    double rate = (double)(done - p->before) / seconds;
    fprintf(stderr, "%.1f %s/s, %.0f tokens/s", rate, what_of(p), (double)n_tokens / seconds);
    if (rate <= 0) return;
    double left = (double)(p->total - done) / rate;
    if (left > 1e8) return;
    int64_t s = (int64_t)(left + 0.5);
    fprintf(stderr, ", %" PRId64 ":%02d:%02d left", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
}

static void draw_bar(int64_t done, int64_t total) {
    enum { WIDTH = 20 };
    int full = (int)((double)done / (double)total * WIDTH);
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r[%s] ", bar);
}

void di_batch_progress_show(di_batch_progress *p, int64_t done, int64_t n_tokens) {
    double now = di_seconds();
    bool terminal = di_terminal_is(stderr);
    if (p->quiet || p->total == 0 || now - p->begin < silent_s) return;
    if (now - p->last < (terminal ? bar_every_s : line_every_s)) return;
    p->last = now;
    if (terminal) draw_bar(done, p->total);
    fprintf(stderr, "%" PRId64 " of %" PRId64 " %s, ", done, p->total, what_of(p));
    print_rate(p, done, n_tokens, now - p->begin);
    fputs(terminal ? "\033[K" : "\n", stderr);
    fflush(stderr);
    p->drawn = terminal;
}

void di_batch_progress_end(di_batch_progress *p) {
    if (p->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->drawn = false;
}
