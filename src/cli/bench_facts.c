/* What was measured on what: machine, model, options. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/file.h"
#include "base/lossy.h"
#include "base/team.h"
#include "cli/bench.h"
#include "cli/command_line.h"

/* ---- Machine ---- */

static void processor_name(char out[128]) {
    char line[512];
    snprintf(out, 128, "unknown");
    FILE *info = fopen("/proc/cpuinfo", "re");
    while (info && fgets(line, sizeof line, info)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *value = strchr(line, ':');
        if (value) snprintf(out, 128, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (info) fclose(info);
}

static int32_t threads_of(const di_bench *b) {
    int32_t threads = (int32_t)di_args_int(b->args, DI_OPT_THREADS);
    return threads > 0 ? threads : di_cores_available();
}

static void put_number(di_buffer *out, const char *key, double value) {
    if (isfinite(value)) {
        di_buffer_printf(out, ", \"%s\": %.9g", key, value);
    } else {
        di_buffer_printf(out, ", \"%s\": null", key);
    }
}

static void put_text(di_buffer *out, const char *key, const char *value) {
    di_buffer_printf(out, ", \"%s\": ", key);
    if (value) {
        di_lossy_write(out, value, strlen(value));
    } else {
        di_buffer_puts(out, "null");
    }
}

static void machine(const di_bench *b, di_buffer *out) {
    char name[128];
    struct utsname system;
    processor_name(name);
    di_buffer_printf(out, ",\n\"machine\": {\"cores\": %d, \"threads\": %d",
                     (int)di_cores_available(), (int)threads_of(b));
    put_text(out, "processor", name);
    if (uname(&system) == 0) put_text(out, "kernel", system.release);
    put_number(out, "memory_bytes",
               (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    put_text(out, "backend", b->backend);
    put_text(out, "gpu", b->gpu[0] ? b->gpu : NULL);
    put_number(out, b->gpu[0] ? "copy_bytes_per_second" : "read_bytes_per_second",
               b->peak.bytes_per_s);
    put_number(out, "flop_per_second", b->peak.flop_per_s);
    di_buffer_putc(out, '}');
}

/* ---- Model ---- */

static void model(const di_bench *b, di_buffer *out) {
    const di_config *c = &b->config;
    di_buffer_printf(out,
                     ",\n\"model\": {\"layers\": %d, \"draft_layers\": %d, \"hidden_size\": %d, "
                     "\"vocab_size\": %d, \"experts\": %d, \"experts_per_token\": %d, "
                     "\"sliding_window\": %d",
                     c->num_hidden_layers, c->num_nextn_predict_layers, c->hidden_size,
                     c->vocab_size, c->n_routed_experts, c->num_experts_per_tok, c->sliding_window);
    put_number(out, "max_context", (double)c->max_position_embeddings);
    put_number(out, "weight_bytes", di_bench_weight_bytes(b));
    di_buffer_puts(out, ", \"engram_rows\": [");
    for (int32_t i = 0; i < c->n_engram_layers; i++) {
        di_buffer_printf(out, "%s%" PRId64, i ? ", " : "", c->engram_num_embeddings[i]);
    }
    di_buffer_putc(out, ']');
    put_text(out, "directory", b->random ? NULL : b->directory);
    put_text(out, "weights", di_args_text(b->args, DI_OPT_WEIGHTS));
    di_buffer_putc(out, '}');
}

void di_bench_facts(const di_bench *b, di_buffer *out) {
    static const di_option_id texts[] = {DI_OPT_BACKEND, DI_OPT_NUMERICS, DI_OPT_REPLAY,
                                         DI_OPT_SPEC, DI_OPT_SPEC_SAMPLING};
    static const di_option_id numbers[] = {DI_OPT_CHUNK, DI_OPT_MAX_BATCH, DI_OPT_PAIRS};
    di_buffer_puts(out, "\"command\": ");
    di_command_line_write(out);
    put_text(out, "version", di_version());
    machine(b, out);
    model(b, out);
    di_buffer_printf(out, ",\n\"options\": {\"seed\": %" PRIu64, b->seed);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put_text(out, di_options[texts[i]].name, di_args_text(b->args, texts[i]));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        put_number(out, di_options[numbers[i]].name, (double)di_args_int(b->args, numbers[i]));
    }
    put_number(out, "window-cache", (double)di_args_unsigned(b->args, DI_OPT_WINDOW_CACHE));
    di_buffer_putc(out, '}');
}

static const char *engram_note(const di_bench *b) {
    return di_args_given(b->args, DI_OPT_ENGRAM_ROWS) ? ", cut by --engram-rows\n" : "\n";
}

void di_bench_facts_text(const di_bench *b, di_buffer *out) {
    const di_config *c = &b->config;
    char name[128];
    if (b->gpu[0]) {
        di_buffer_printf(out, "%s, copies %.1f GB/s, does %.1f TFLOP/s of bf16 products\n", b->gpu,
                         b->peak.bytes_per_s * 1e-9, b->peak.flop_per_s * 1e-12);
    } else {
        processor_name(name);
        di_buffer_printf(out, "%s, %d threads", name, (int)threads_of(b));
        if (isfinite(b->peak.bytes_per_s)) {
            di_buffer_printf(out, ", reads %.1f GB/s, does %.1f GFLOP/s",
                             b->peak.bytes_per_s * 1e-9, b->peak.flop_per_s * 1e-9);
        }
        di_buffer_putc(out, '\n');
    }
    di_buffer_printf(out, "%s: %d layers of width %d, %d experts, %.3f GB; %s, %s\n",
                     b->random ? "random weights" : b->directory, c->num_hidden_layers,
                     c->hidden_size, c->n_routed_experts, di_bench_weight_bytes(b) * 1e-9,
                     b->backend, di_args_text(b->args, DI_OPT_NUMERICS));
    for (int32_t i = 0; b->random && i < c->n_engram_layers; i++) {
        di_buffer_printf(out, "%s%" PRId64 " rows%s", i ? ", " : "Engram tables of ",
                         c->engram_num_embeddings[i],
                         i + 1 < c->n_engram_layers ? "" : engram_note(b));
    }
}
