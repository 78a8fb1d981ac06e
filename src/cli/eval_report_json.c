/* The report as JSON: everything that the tables say and the counts behind it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/lossy.h"
#include "cli/command_line.h"
#include "cli/eval_report.h"
#include "deepinfer.h"

static void write_number(di_buffer *out, const char *key, double x) {
    if (isfinite(x)) {
        di_buffer_printf(out, ", \"%s\": %.10g", key, x);
    } else {
        di_buffer_printf(out, ", \"%s\": null", key);
    }
}

static void write_bounds(di_buffer *out, const char *key, bool has, di_interval bounds) {
    if (has && isfinite(bounds.low) && isfinite(bounds.high)) {
        di_buffer_printf(out, ", \"%s\": [%.10g, %.10g]", key, bounds.low, bounds.high);
    } else {
        di_buffer_printf(out, ", \"%s\": null", key);
    }
}

static void write_string(di_buffer *out, const char *key, const char *text) {
    di_buffer_printf(out, ", \"%s\": ", key);
    if (text) {
        di_lossy_write(out, text, strlen(text));
    } else {
        di_buffer_puts(out, "null");
    }
}

/* The lines whose answers are not right, to be looked at. */
static void write_wrong(const di_eval_run *run, const di_eval_set *set, const di_eval_group *group,
                        di_buffer *out) {
    const char *before = "";
    di_buffer_puts(out, ", \"wrong_lines\": [");
    for (size_t i = group->first; i < group->first + group->n_items && i < run->n_items; i++) {
        if (!run->results[i].done || run->results[i].right) continue;
        di_buffer_printf(out, "%s%" PRId64, before, set->items[i].line);
        before = ", ";
    }
    di_buffer_putc(out, ']');
}

static void write_task(const di_eval_report *r, size_t index, const di_eval_group *group,
                       di_buffer *out) {
    const di_eval_run *run = &r->runs[index];
    di_eval_score s = di_eval_score_tasks(r->set, run, group);
    di_buffer_puts(out, "{\"task\": ");
    di_lossy_write(out, group ? group->name : "", group ? strlen(group->name) : 0);
    di_buffer_printf(out, ", \"n\": %" PRId64 ", \"right\": %" PRId64, s.n, s.right);
    if (s.n > 0) {
        write_number(out, "accuracy", s.share);
        write_bounds(out, "accuracy_95", true, s.bounds);
    } else {
        di_buffer_puts(out, ", \"accuracy\": null, \"accuracy_95\": null");
    }
    di_buffer_printf(out,
                     ", \"n_whole\": %" PRId64 ", \"whole\": %" PRId64 ", \"cut\": %" PRId64
                     ", \"prompt_tokens\": %" PRId64 ", \"cached_tokens\": %" PRId64,
                     s.n_whole, s.whole, s.n_cut, s.n_prompt, s.n_cached);
    if (group) write_wrong(run, r->set, group, out);
    if (index > 0) {
        di_eval_pair p = di_eval_pair_tasks(r->set, r->runs, run, group);
        di_buffer_printf(out,
                         ", \"against_first\": {\"n\": %" PRId64 ", \"only_first_right\": %" PRId64
                         ", \"only_this_right\": %" PRId64 ", \"same_answers\": %" PRId64,
                         p.n, p.only_first, p.only_second, p.same);
        write_number(out, "difference", p.n > 0 ? p.difference : NAN);
        write_bounds(out, "difference_95", p.n > 0, p.bounds);
        di_buffer_putc(out, '}');
    }
    di_buffer_putc(out, '}');
}

static di_interval exponential(di_interval x) { return (di_interval){exp(x.low), exp(x.high)}; }

static di_status write_text(const di_eval_report *r, size_t index, const di_eval_group *group,
                            di_buffer *out, di_error *error) {
    const di_eval_run *run = &r->runs[index];
    di_eval_text_score s;
    DI_TRY(di_eval_score_text(run, group, &s, error));
    di_buffer_puts(out, "{\"text\": ");
    di_lossy_write(out, group->name, strlen(group->name));
    di_buffer_printf(out, ", \"rows\": %" PRId64 ", \"row_prompt\": %zu, \"tokens\": %" PRId64,
                     s.n_rows, r->row_prompt, s.n_tokens);
    write_number(out, "nats_per_token", s.n_rows > 0 ? s.nats : NAN);
    write_bounds(out, "nats_per_token_95", s.has_bounds, s.bounds);
    write_number(out, "perplexity", s.n_rows > 0 ? exp(s.nats) : NAN);
    write_bounds(out, "perplexity_95", s.has_bounds, exponential(s.bounds));
    di_buffer_printf(out, ", \"prompt_tokens\": %" PRId64 ", \"cached_tokens\": %" PRId64,
                     s.n_prompt, s.n_cached);
    if (index > 0) {
        di_eval_text_pair p;
        DI_TRY(di_eval_pair_text(r->runs, run, group, &p, error));
        di_buffer_printf(out,
                         ", \"against_first\": {\"rows\": %" PRId64 ", \"same_rows\": %" PRId64,
                         p.n_rows, p.same);
        write_number(out, "difference", p.n_rows > 0 ? p.difference : NAN);
        write_bounds(out, "difference_95", p.has_bounds, p.bounds);
        di_buffer_putc(out, '}');
    }
    di_buffer_putc(out, '}');
    return DI_OK;
}

static di_status write_groups(const di_eval_report *r, size_t index, bool text, di_buffer *out,
                              di_error *error) {
    const char *before = "";
    for (size_t i = 0; i < r->set->n_groups; i++) {
        const di_eval_group *group = &r->set->groups[i];
        if (group->is_text != text) continue;
        di_buffer_puts(out, before);
        before = ", ";
        if (text) {
            DI_TRY(write_text(r, index, group, out, error));
        } else {
            write_task(r, index, group, out);
        }
    }
    return DI_OK;
}

/* What may change answers. backend NULL, context 0: not known yet; the option, the model's own. */
static void write_machine(const di_args *args, const char *backend, int64_t context,
                          di_buffer *out) {
    static const struct {
        const char *key;
        di_option_id option;
    } texts[] = {{"numerics", DI_OPT_NUMERICS},
                 {"replay", DI_OPT_REPLAY},
                 {"spec", DI_OPT_SPEC}, /* null: the library's choice */
                 {"spec_sampling", DI_OPT_SPEC_SAMPLING}};
    write_string(out, "backend", backend ? backend : di_args_text(args, DI_OPT_BACKEND));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_string(out, texts[i].key, di_args_text(args, texts[i].option));
    }
    if (context > 0) {
        di_buffer_printf(out, ", \"context\": %" PRId64, context);
    } else {
        di_buffer_puts(out, ", \"context\": null");
    }
}

/* The command line's, which settings may differ from. */
static void write_options(const di_eval_report *r, di_buffer *out) {
    di_buffer_printf(out, ", \"options\": {\"seed\": %" PRIu64,
                     di_args_unsigned(r->args, DI_OPT_SEED));
    write_number(out, "temperature", di_args_real(r->args, DI_OPT_TEMPERATURE));
    di_buffer_printf(out, ", \"max_tokens\": %" PRId64, r->max_tokens);
    write_machine(r->args, NULL, di_args_int(r->args, DI_OPT_CONTEXT), out);
    di_buffer_putc(out, '}');
}

static di_status write_run(const di_eval_report *r, size_t index, di_buffer *out, di_error *error) {
    const di_eval_run *run = &r->runs[index];
    const char *name = run->setting->name;
    di_buffer_puts(out, index ? ", {\"setting\": " : "{\"setting\": ");
    di_lossy_write(out, name, strlen(name));
    write_machine(&run->setting->args, run->backend, run->context, out);
    di_buffer_puts(out, ", \"tasks\": [");
    DI_TRY(write_groups(r, index, false, out, error));
    di_buffer_puts(out, "], \"all_tasks\": ");
    write_task(r, index, NULL, out);
    di_buffer_puts(out, ", \"texts\": [");
    DI_TRY(write_groups(r, index, true, out, error));
    di_buffer_printf(out,
                     "], \"items\": %zu, \"seconds\": %.3f, \"prompt_tokens\": %" PRId64
                     ", \"cached_tokens\": %" PRId64 ", \"answer_tokens\": %" PRId64
                     ", \"tokens_per_s\": %.3f}",
                     run->n_done, run->seconds, run->n_prompt, run->n_cached, run->n_answer,
                     run->seconds > 0 ? (double)run->n_tokens / run->seconds : 0);
    return DI_OK;
}

di_status di_eval_write_json(const di_eval_report *report, di_buffer *out, di_error *error) {
    di_buffer_puts(out, "{\"model\": ");
    di_lossy_write(out, report->model, strlen(report->model));
    write_string(out, "version", di_version());
    di_buffer_puts(out, ", \"command\": ");
    di_command_line_write(out);
    write_options(report, out);
    di_buffer_printf(
        out,
        ", \"complete\": %s, \"warm\": %s, \"refused\": %" PRId64
        ", \"intervals\": {\"accuracy\": \"Wilson\", \"difference\": \"Tango, paired\", "
        "\"nats_per_token\": \"Student t over rows\"}, \"settings\": [",
        report->partial ? "false" : "true", report->compared ? "true" : "false",
        report->set->n_refused);
    for (size_t i = 0; i < report->n_runs; i++) DI_TRY(write_run(report, i, out, error));
    di_buffer_puts(out, "]}\n");
    return out->failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: report") : DI_OK;
}
