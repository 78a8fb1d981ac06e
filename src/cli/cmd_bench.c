/* bench: how fast a model runs here. The scenarios are in bench_*.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/digits.h"
#include "base/lossy.h"
#include "cli/bench.h"
#include "cli/synth_args.h"
#include "cli/terminal.h"

static const struct {
    const char *name;
    di_status (*run)(di_bench *b, di_error *error);
    bool floors; /* of what the machine can do */
} scenarios[] = {
    {"prefill", di_bench_prefill, true},
    {"decode", di_bench_decode, true},
    {"row", di_bench_row, false},
    {"latency", di_bench_latency, false},
    {"cache", di_bench_cache, false},
    {"cut", di_bench_cut, false},
    {"speculation", di_bench_speculation, false},
    {"sampled", di_bench_sampled, false},
    {"gap", di_bench_gap, false},
};
enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* ---- Lists ---- */

di_status di_bench_read_list(const char *option, const char *text, int64_t min, int64_t max,
                             di_bench_list *list, di_error *error) {
    list->n = 0;
    for (const char *at = text;; at++) {
        const char *end;
        uint64_t value;
        if (!di_read_digits(at, (uint64_t)min, (uint64_t)max, &value, &end) ||
            (*end != ',' && *end != '\0') || list->n == DI_BENCH_MAX_LIST) {
            return di_fail(error, DI_ERR_USAGE,
                           "--%s: '%.60s' is no list of at most %d whole numbers from %" PRId64
                           " to %" PRId64 ", separated by commas",
                           option, text, DI_BENCH_MAX_LIST, min, max);
        }
        list->values[list->n++] = (int64_t)value;
        at = end;
        if (*at == '\0') return DI_OK;
    }
}

di_bench_list di_bench_choose(const di_bench_list *given, const int64_t *defaults, int n) {
    if (given->n > 0) return *given;
    di_bench_list list = {.n = n};
    for (int i = 0; i < n; i++) list.values[i] = defaults[i];
    return list;
}

int64_t di_bench_largest(const di_bench_list *list) {
    int64_t largest = 0;
    for (int i = 0; i < list->n; i++) {
        if (list->values[i] > largest) largest = list->values[i];
    }
    return largest;
}

di_status di_bench_choose_lengths(const di_bench *b, const char *scenario, const int64_t *usual,
                                  int n, int64_t least, int64_t most, di_bench_need need,
                                  di_bench_list *out, di_error *error) {
    int64_t context = b->config.max_position_embeddings;
    *out = b->lengths;
    if (out->n > 0) return DI_OK;
    if (di_args_given(b->args, DI_OPT_CONTEXT) && di_args_int(b->args, DI_OPT_CONTEXT) < context) {
        context = di_args_int(b->args, DI_OPT_CONTEXT);
    }
    for (int i = 0; i < n; i++) {
        int64_t length = usual[i];
        while (length >= least && need(b, length, most) > context) length--;
        if (length < least) {
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "%s: a context of %" PRId64 " tokens is too short for it", scenario,
                           context);
        }
        if (out->n == 0 || out->values[out->n - 1] != length) out->values[out->n++] = length;
    }
    return DI_OK;
}

static di_status read_lists(di_bench *b, di_error *error) {
    const char *lengths = di_args_text(b->args, DI_OPT_PROMPT_TOKENS);
    const char *batches = di_args_text(b->args, DI_OPT_BATCHES);
    if (lengths) {
        DI_TRY(di_bench_read_list("prompt-tokens", lengths, 1, 1 << 24, &b->lengths, error));
    }
    if (batches) {
        DI_TRY(di_bench_read_list("batches", batches, 1, DI_BENCH_MAX_BATCH, &b->batches, error));
    }
    return DI_OK;
}

/* Which scenarios, in the order of the table; chosen [N_SCENARIOS]. */
static di_status choose(const char *list, bool *chosen, di_error *error) {
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        bool all = n == 3 && strncmp(at, "all", 3) == 0, known = all;
        for (int i = 0; i < N_SCENARIOS; i++) {
            bool same = strlen(scenarios[i].name) == n && strncmp(at, scenarios[i].name, n) == 0;
            chosen[i] = chosen[i] || same || all;
            known = known || same;
        }
        if (!known) {
            return di_fail(error, DI_ERR_USAGE,
                           "--scenario: '%.*s' is unknown; 'deepinfer help bench' lists them",
                           n > 40 ? 40 : (int)n, at);
        }
        at += n + (at[n] == ',');
    }
    return *list ? DI_OK : di_fail(error, DI_ERR_USAGE, "--scenario is empty");
}

/* ---- The model ---- */

static bool report_weights(void *user, uint64_t done, uint64_t total) {
    di_bench *b = user;
    di_bench_note(b, "making weights: %.1f of %.1f GB", (double)done * 1e-9, (double)total * 1e-9);
    return !di_interrupt_seen();
}

static di_status make_weights(di_bench *b, di_error *error) {
    di_buffer config = DI_BUFFER_EMPTY;
    di_status status = di_args_synth_config(b->args, &config, error);
    if (status == DI_OK) {
        di_synth_options options = {.config_json = config.data,
                                    .config_size = config.size,
                                    .seed = b->seed,
                                    .progress = report_weights,
                                    .user = b};
        status = di_synth_memory_create(&options, (int32_t)di_args_int(b->args, DI_OPT_THREADS),
                                        &b->random, error);
        di_bench_note_end(b);
    }
    di_buffer_free(&config);
    if (status == DI_OK) b->directory = di_synth_memory_directory(b->random);
    return status;
}

/* Options of random weights say nothing about files, and the other way round. */
static di_status find_model(di_bench *b, di_error *error) {
    static const di_option_id only[] = {DI_OPT_CONFIG,       DI_OPT_SET,     DI_OPT_LAYERS,
                                        DI_OPT_DRAFT_LAYERS, DI_OPT_EXPERTS, DI_OPT_ENGRAM_ROWS};
    bool random = strcmp(di_args_text(b->args, DI_OPT_WEIGHTS), "random") == 0;
    for (size_t i = 0; i < sizeof only / sizeof *only && !random; i++) {
        if (!di_args_given(b->args, only[i])) continue;
        return di_fail(error, DI_ERR_USAGE, "--%s goes with --weights random",
                       di_options[only[i]].name);
    }
    if (random && b->args->n_positional > 0) {
        return di_fail(error, DI_ERR_USAGE,
                       "--weights random takes no MODEL; --config says what to make");
    }
    if (!random && b->args->n_positional == 0) {
        return di_fail(error, DI_ERR_USAGE,
                       "MODEL is missing: a model directory, or --weights random --config FILE");
    }
    if (random) {
        DI_TRY(make_weights(b, error));
    } else {
        b->directory = b->args->positional[0];
    }
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/config.json", b->directory);
    if (n < 0 || n >= (int)sizeof path) {
        return di_fail(error, DI_ERR_USAGE, "the path of the model directory is too long");
    }
    return di_config_load(path, &b->config, error);
}

/* ---- The run ---- */

/* What this model or build cannot do, or has no memory for, is left out of a list that was not made
 * for it. */
static di_status run_one(di_bench *b, int i, bool forgiving, di_error *error) {
    di_status status = scenarios[i].run(b, error);
    if (b->columns) di_bench_table_end(b);
    bool cannot = status == DI_ERR_UNSUPPORTED || status == DI_ERR_MEMORY;
    if (!cannot || !forgiving) return status;
    if (!b->quiet) fprintf(stderr, "left out: %s\n", error->message);
    di_buffer_printf(&b->left_out,
                     "%s{\"scenario\": \"%s\", \"why\": ", b->left_out.size > 0 ? ", " : "",
                     scenarios[i].name);
    di_lossy_write(&b->left_out, error->message, strlen(error->message));
    di_buffer_putc(&b->left_out, '}');
    return DI_OK;
}

static di_status run_all(di_bench *b, const bool *chosen, bool forgiving, di_error *error) {
    for (int i = 0; i < N_SCENARIOS; i++) {
        if (!chosen[i]) continue;
        if (di_interrupt_seen()) return di_fail(error, DI_ERR_CANCELLED, "interrupted");
        DI_TRY(run_one(b, i, forgiving, error));
    }
    return DI_OK;
}

static di_status print_document(const di_bench *b, bool complete, di_error *error) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_buffer_putc(&out, '{');
    di_bench_facts(b, &out);
    di_buffer_puts(&out, ",\n\"tables\": {");
    if (b->tables.size > 0) di_buffer_append(&out, b->tables.data, b->tables.size);
    di_buffer_puts(&out, "\n},\n\"left_out\": [");
    if (b->left_out.size > 0) di_buffer_append(&out, b->left_out.data, b->left_out.size);
    di_buffer_printf(&out, "],\n\"complete\": %s}\n", complete ? "true" : "false");
    bool failed = out.failed || b->tables.failed || b->left_out.failed;
    if (!failed) fwrite(out.data, 1, out.size, stdout);
    di_buffer_free(&out);
    return failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: the document") : DI_OK;
}

static di_status print_head(const di_bench *b, di_error *error) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_bench_facts_text(b, &out);
    bool failed = out.failed;
    if (!failed) fwrite(out.data, 1, out.size, stdout);
    fflush(stdout);
    di_buffer_free(&out);
    return failed ? di_fail(error, DI_ERR_MEMORY, "out of memory printing") : DI_OK;
}

static di_status run_bench(di_bench *b, di_error *error) {
    bool chosen[N_SCENARIOS] = {false}, floors = false;
    const char *list = di_args_text(b->args, DI_OPT_SCENARIO);
    bool forgiving = !di_args_given(b->args, DI_OPT_SCENARIO) || strcmp(list, "all") == 0;
    DI_TRY(choose(list, chosen, error));
    for (int i = 0; i < N_SCENARIOS; i++) floors = floors || (chosen[i] && scenarios[i].floors);
    DI_TRY(read_lists(b, error));
    DI_TRY(di_bench_check_rates(b, error));
    DI_TRY(find_model(b, error));
    DI_TRY(di_bench_device(b, floors, error));
    if (!b->json) DI_TRY(print_head(b, error));
    di_status status = run_all(b, chosen, forgiving, error);
    if (!b->json) return status;
    di_error failure; /* what came before a failure may have taken an hour */
    di_status printed = print_document(b, status == DI_OK, &failure);
    if (status == DI_OK && printed != DI_OK) {
        *error = failure;
        return printed;
    }
    return status;
}

di_status di_cmd_bench(const di_args *args, di_error *error) {
    di_bench b = {
        .args = args,
        .seed = di_args_unsigned(args, DI_OPT_SEED),
        .pairs = (int)di_args_int(args, DI_OPT_PAIRS),
        .json = di_args_flag(args, DI_OPT_JSON),
        .quiet = di_args_flag(args, DI_OPT_QUIET),
        .last_note = di_seconds(),
    };
    di_interrupt_catch(false);
    di_status status = run_bench(&b, error);
    di_bench_note_end(&b);
    di_synth_memory_destroy(b.random);
    di_buffer_free(&b.tables);
    di_buffer_free(&b.left_out);
    return status;
}
