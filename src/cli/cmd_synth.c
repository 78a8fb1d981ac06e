/* synth: a random checkpoint in the release's format. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/lossy.h"
#include "cli/cli.h"
#include "cli/synth_args.h"
#include "cli/terminal.h"
#include "model/checkpoint.h"
#include "model/synth.h"
#include "model/synth_path.h"

enum { MIB = 1 << 20, GIB = 1 << 30 };

/* ---- Progress ---- */

typedef struct meter {
    bool quiet, drawn;
    double begin, last;
} meter;

static bool report(void *user, uint64_t done, uint64_t total) {
    meter *m = user;
    double now = di_seconds();
    bool terminal = di_terminal_is(stderr);
    if (!m->quiet && now - m->begin > 1 && now - m->last > (terminal ? 0.1 : 10)) {
        fprintf(stderr, "%swriting: %3d %%, %.1f of %.1f GiB, %.0f MiB/s%s", terminal ? "\r" : "",
                (int)(100 * (double)done / (double)total), (double)done / GIB, (double)total / GIB,
                (double)done / MIB / (now - m->begin), terminal ? "\033[K" : "\n");
        fflush(stderr);
        m->last = now;
        m->drawn = terminal;
    }
    return !di_interrupt_seen();
}

static void end_meter(const meter *m) {
    if (m->drawn) fputs("\r\033[K", stderr);
}

/* ---- The verb ---- */

typedef struct sums {
    uint64_t tensors, bytes;
} sums;

static di_status add(void *user, const di_tensor_spec *spec, di_error *error) {
    sums *s = user;
    (void)error;
    s->tensors++;
    s->bytes += di_tensor_spec_bytes(spec);
    return DI_OK;
}

/* The prompt whose path was planted: ids separated by `separator`. */
static void put_ids(di_buffer *out, const di_path *path, const char *separator) {
    for (int i = 0; i < DI_PATH_TOKENS; i++) {
        di_buffer_printf(out, "%s%d", i ? separator : "", path->ids[i]);
    }
}

static void result_json(const char *directory, const sums *s, bool sparse, const di_path *path,
                        double seconds, di_buffer *out) {
    di_buffer_puts(out, "{\"directory\": ");
    di_lossy_write(out, directory, strlen(directory));
    di_buffer_printf(out,
                     ", \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64
                     ", \"sparse\": %s, \"planted_ids\": [",
                     s->tensors, s->bytes, sparse ? "true" : "false");
    if (sparse) put_ids(out, path, ", ");
    di_buffer_printf(out, "], \"seconds\": %.3f}\n", seconds);
}

static void result_text(const char *directory, const sums *s, bool sparse, const di_path *path,
                        di_buffer *out) {
    di_buffer_printf(out, "%s: %" PRIu64 " tensors, %" PRIu64 " bytes%s\n", directory, s->tensors,
                     s->bytes, sparse ? " (sparse)" : "");
    if (!sparse) return;
    di_buffer_puts(out, "holes, but for what the prompt of ids ");
    put_ids(out, path, " ");
    di_buffer_puts(out, " looks at\n");
}

static di_status print_result(const di_args *args, const char *directory, const di_config *config,
                              const di_path *path, double seconds, di_error *error) {
    sums s = {0};
    DI_TRY(di_contract_each(config, add, &s, error));
    bool sparse = di_args_flag(args, DI_OPT_SPARSE), json = di_args_flag(args, DI_OPT_JSON);
    di_buffer out = DI_BUFFER_EMPTY;
    if (json) {
        result_json(directory, &s, sparse, path, seconds, &out);
    } else {
        result_text(directory, &s, sparse, path, &out);
    }
    bool failed = out.failed;
    if (!failed) fwrite(out.data, 1, out.size, stdout);
    di_buffer_free(&out);
    if (failed) return di_fail(error, DI_ERR_MEMORY, "out of memory printing");
    if (!json && !di_args_flag(args, DI_OPT_QUIET) && !sparse && seconds > 0) {
        fprintf(stderr, "%.2f s, %.0f MiB/s\n", seconds, (double)s.bytes / MIB / seconds);
    }
    return DI_OK;
}

/* A checkpoint whose path could not be planted looks whole and is not. */
static di_status plant(const di_args *args, const char *directory, const di_config *config,
                       di_path *path, di_error *error) {
    di_error why;
    uint64_t seed = di_args_unsigned(args, DI_OPT_SEED);
    di_status status = di_path_plant_into(directory, config, NULL, seed, path, &why);
    if (status == DI_OK) return DI_OK;
    return di_fail(error, status, "%.800s; %.150s is not complete: remove it", why.message,
                   directory);
}

di_status di_cmd_synth(const di_args *args, di_error *error) {
    const char *directory = args->positional[0];
    di_buffer config = DI_BUFFER_EMPTY;
    meter m = {.quiet = di_args_flag(args, DI_OPT_QUIET)};
    di_status status = di_args_synth_config(args, &config, error);
    if (status == DI_OK) {
        di_synth_options options = {
            .config_json = config.data,
            .config_size = config.size,
            .tokenizer_dir = di_args_text(args, DI_OPT_TOKENIZER),
            .seed = di_args_unsigned(args, DI_OPT_SEED),
            .n_shards = (int32_t)di_args_int(args, DI_OPT_SHARDS),
            .sparse = di_args_flag(args, DI_OPT_SPARSE),
            .progress = report,
            .user = &m,
        };
        di_interrupt_catch(false);
        m.begin = di_seconds();
        status = di_synth_write(directory, &options, error);
        end_meter(&m);
    }
    di_config parsed;
    di_path path = {0};
    if (status == DI_OK) {
        status = di_config_parse(config.data, config.size, "config.json", &parsed, error);
    }
    if (status == DI_OK && di_args_flag(args, DI_OPT_SPARSE)) {
        status = plant(args, directory, &parsed, &path, error);
    }
    if (status == DI_OK) {
        status = print_result(args, directory, &parsed, &path, di_seconds() - m.begin, error);
    }
    di_buffer_free(&config);
    return status;
}
