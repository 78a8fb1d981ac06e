/* The tables: one of tasks and one of texts for every setting, and under the second and later
 * settings their differences from the first. */
#include "cli/eval_report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"

typedef struct table {
    const di_eval_report *report;
    di_buffer *out;
    int name_width;
} table;

static int width_of_names(const di_eval_set *set) {
    size_t width = strlen("all tasks");
    for (size_t i = 0; i < set->n_groups; i++) {
        if (strlen(set->groups[i].name) > width) width = strlen(set->groups[i].name);
    }
    return width < 60 ? (int)width : 60;
}

/* ---- Tasks ---- */

static void write_whole(const di_eval_score *s, di_buffer *out) {
    if (s->n_whole == 0) {
        di_buffer_puts(out, "      -\n");
    } else {
        di_buffer_printf(out, "  %5.3f\n", (double)s->whole / (double)s->n_whole);
    }
}

static void task_row(const table *t, const di_eval_run *run, const di_eval_group *group) {
    di_eval_score s = di_eval_score_tasks(t->report->set, run, group);
    if (s.n == 0) return;
    di_buffer_printf(t->out, "%-*s  %6" PRId64 "  %5.3f  %5.3f .. %5.3f", t->name_width,
                     group ? group->name : "all tasks", s.n, s.share, s.bounds.low, s.bounds.high);
    write_whole(&s, t->out);
}

static void pair_row(const table *t, const di_eval_run *run, const di_eval_group *group) {
    const di_eval_set *set = t->report->set;
    di_eval_score s = di_eval_score_tasks(set, run, group);
    di_eval_pair p = di_eval_pair_tasks(set, t->report->runs, run, group);
    if (p.n == 0) return;
    di_buffer_printf(t->out,
                     "%-*s  %6" PRId64 "  %5.3f  %+6.3f  %+6.3f .. %+6.3f  %5" PRId64 "  %6" PRId64
                     "  %6" PRId64 "  %4.0f %%\n",
                     t->name_width, group ? group->name : "all tasks", p.n, s.share, p.difference,
                     p.bounds.low, p.bounds.high, p.only_first, p.only_second, p.same,
                     s.n_prompt > 0 ? 100.0 * (double)s.n_cached / (double)s.n_prompt : 0);
}

static size_t count_groups(const di_eval_set *set, bool text) {
    size_t n = 0;
    for (size_t i = 0; i < set->n_groups; i++) n += set->groups[i].is_text == text;
    return n;
}

static void write_tasks(const table *t, size_t index) {
    const di_eval_set *set = t->report->set;
    void (*row)(const table *, const di_eval_run *, const di_eval_group *) =
        index == 0 ? task_row : pair_row;
    size_t n = count_groups(set, false);
    if (n == 0) return;
    di_buffer_printf(t->out, "%-*s  %6s  %5s", t->name_width, "task", "n", "right");
    di_buffer_puts(t->out, index == 0
                               ? "  95 % interval   whole\n"
                               : "  differ  95 % interval     worse  better    same   saved\n");
    for (size_t i = 0; i < set->n_groups; i++) {
        if (!set->groups[i].is_text) row(t, &t->report->runs[index], &set->groups[i]);
    }
    if (n > 1) row(t, &t->report->runs[index], NULL);
    di_buffer_putc(t->out, '\n');
}

/* ---- Texts ---- */

static di_status text_row(const table *t, const di_eval_run *run, const di_eval_group *group,
                          di_error *error) {
    di_eval_text_score s;
    DI_TRY(di_eval_score_text(run, group, &s, error));
    if (s.n_rows == 0) return DI_OK;
    di_buffer_printf(t->out, "%-*s  %6" PRId64 "  %7" PRId64 "  %6.4f", t->name_width, group->name,
                     s.n_rows, s.n_tokens, s.nats);
    if (s.has_bounds) {
        di_buffer_printf(t->out, "  %6.4f .. %6.4f", s.bounds.low, s.bounds.high);
    } else {
        di_buffer_printf(t->out, "  %16s", "-");
    }
    di_buffer_printf(t->out, "  %10.2f", exp(s.nats));
    if (s.has_bounds) {
        di_buffer_printf(t->out, "  %.2f .. %.2f", exp(s.bounds.low), exp(s.bounds.high));
    }
    di_buffer_putc(t->out, '\n');
    return DI_OK;
}

static di_status text_pair_row(const table *t, const di_eval_run *run, const di_eval_group *group,
                               di_error *error) {
    di_eval_text_score s;
    di_eval_text_pair p;
    DI_TRY(di_eval_score_text(run, group, &s, error));
    DI_TRY(di_eval_pair_text(t->report->runs, run, group, &p, error));
    if (p.n_rows == 0) return DI_OK;
    di_buffer_printf(t->out, "%-*s  %6" PRId64 "  %6.4f  %+7.4f", t->name_width, group->name,
                     p.n_rows, s.nats, p.difference);
    if (p.has_bounds) {
        di_buffer_printf(t->out, "  %+7.4f .. %+7.4f", p.bounds.low, p.bounds.high);
    } else {
        di_buffer_printf(t->out, "  %18s", "-");
    }
    di_buffer_printf(t->out, "  %10.2f  %4" PRId64 "  %4.0f %%\n", exp(s.nats), p.same,
                     s.n_prompt > 0 ? 100.0 * (double)s.n_cached / (double)s.n_prompt : 0);
    return DI_OK;
}

static di_status write_texts(const table *t, size_t index, di_error *error) {
    const di_eval_set *set = t->report->set;
    if (count_groups(set, true) == 0) return DI_OK;
    di_buffer_printf(t->out, "%-*s  %6s", t->name_width, "text", "rows");
    di_buffer_puts(t->out,
                   index == 0
                       ? "   tokens    nats  95 % interval     perplexity  95 % interval\n"
                       : "    nats   differ  95 % interval       perplexity  same   saved\n");
    for (size_t i = 0; i < set->n_groups; i++) {
        if (!set->groups[i].is_text) continue;
        const di_eval_run *run = &t->report->runs[index];
        DI_TRY(index == 0 ? text_row(t, run, &set->groups[i], error)
                          : text_pair_row(t, run, &set->groups[i], error));
    }
    di_buffer_putc(t->out, '\n');
    return DI_OK;
}

/* ---- A setting ---- */

static void write_speed(const di_eval_run *run, di_buffer *out) {
    double seconds = run->seconds > 0 ? run->seconds : 1e-9;
    di_buffer_printf(out,
                     "%zu items in %.1f s; prompts: %" PRId64 " tokens, %" PRId64
                     " of them cached; answers: %" PRId64
                     " tokens; %.0f tokens/s sampled or scored\n",
                     run->n_done, run->seconds, run->n_prompt, run->n_cached, run->n_answer,
                     (double)run->n_tokens / seconds);
}

static void write_cut(const table *t, size_t index) {
    di_eval_score s = di_eval_score_tasks(t->report->set, &t->report->runs[index], NULL);
    if (s.n_cut == 0) return;
    di_buffer_printf(t->out, "%" PRId64 " answers were cut at their longest\n", s.n_cut);
}

static void write_heading(const table *t, size_t index) {
    const di_eval_report *r = t->report;
    if (!r->compared) return;
    di_buffer_printf(t->out, "%s%s", index ? "\n" : "", r->runs[index].setting->name);
    if (index > 0) di_buffer_printf(t->out, " against %s", r->runs[0].setting->name);
    di_buffer_puts(t->out, "\n\n");
}

di_status di_eval_write_tables(const di_eval_report *report, di_buffer *out, di_error *error) {
    table t = {report, out, width_of_names(report->set)};
    for (size_t i = 0; i < report->n_runs; i++) {
        write_heading(&t, i);
        write_tasks(&t, i);
        DI_TRY(write_texts(&t, i, error));
        write_speed(&report->runs[i], out);
        write_cut(&t, i);
    }
    if (report->partial) di_buffer_puts(out, "\nPARTIAL: stopped before the end\n");
    return out->failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: report") : DI_OK;
}
