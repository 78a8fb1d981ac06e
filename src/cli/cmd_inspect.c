/* inspect: what is in a checkpoint, and what a machine needs to run it. */
#include <dirent.h>
#include <string.h>

#include "api/plan.h"
#include "cli/cli.h"
#include "cli/config_source.h"
#include "cli/engine_args.h"
#include "cli/inspect_report.h"

/* ---- Finding out ---- */

/* Weights of any kind: even one shard means that the directory is meant as a checkpoint. */
static bool has_weights(const char *directory) {
    static const char part[] = ".safetensors"; /* also in the name of the index */
    bool found = false;
    DIR *folder = opendir(directory);
    if (!folder) return true; /* opening the checkpoint will say why */
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;) {
        found = strstr(entry->d_name, part) != NULL;
    }
    closedir(folder);
    return found;
}

/* A model directory, or a config alone. */
static di_status open_subject(di_inspect_subject *s, bool deep, di_error *error) {
    di_config_source source;
    di_status status = di_config_source_read(s->name, &source, error);
    if (status == DI_OK) {
        status = di_config_parse(source.json, source.size, source.path, &s->config, error);
    }
    di_config_source_free(&source);
    if (status != DI_OK) return status;
    if (!source.directory || !has_weights(s->name)) return DI_OK;
    DI_TRY(di_checkpoint_open(s->name, &s->config, &s->checkpoint, error));
    return di_checkpoint_check_scales(s->checkpoint, deep, error);
}

/* The fast path's sizes where this machine has it; those of the twins when it has not and nobody
 * asked for it. */
static di_status create_host(const di_engine_options *o, di_backend **out, di_error *error) {
    const di_numerics numerics =
        strcmp(o->numerics, "float") == 0 ? DI_NUMERICS_FLOAT : DI_NUMERICS_RELEASE;
    if (strcmp(o->backend, "ref") == 0) return di_backend_create_ref(numerics, out, error);
    di_cpu_options cpu = {.n_threads = o->n_threads, .spin = 0, .cpu_mask = ~0u};
    di_status status = di_backend_create_cpu(numerics, &cpu, out, error);
    if (status != DI_ERR_UNSUPPORTED || strcmp(o->backend, "auto") != 0) return status;
    return di_backend_create_ref(numerics, out, error);
}

/* The GPU's plan where it was asked for or may be taken. */
static di_status plan_gpu(di_inspect_subject *s, const di_engine_options *o, di_error *error) {
    bool chosen = strcmp(o->backend, "cuda") == 0;
    if (!chosen && strcmp(o->backend, "auto") != 0) return DI_OK;
    di_status status = di_engine_plan_gpu(&s->config, o, &s->context, &s->gpu, error);
    s->has_gpu = status == DI_OK;
    if (s->has_gpu) return DI_OK;
    if (chosen) return di_device_refuse(error);
    snprintf(s->no_gpu, sizeof s->no_gpu, "%s", di_device_reason(error));
    return DI_OK;
}

/* What an engine with these options would take: its own plan, so that the two cannot disagree. */
static di_status plan_state(const di_args *args, di_inspect_subject *s, di_error *error) {
    di_backend *backend;
    di_engine_options o = di_engine_options_defaults();
    di_args_machine(args, &o);
    o.max_batch = (int32_t)di_args_int(args, DI_OPT_BATCH);
    s->numerics = o.numerics;
    DI_TRY(di_engine_plan_context(&s->config, &o, &s->context, error));
    DI_TRY(plan_gpu(s, &o, error));
    if (s->has_gpu && (s->gpu.fits || strcmp(o.backend, "cuda") == 0)) {
        s->backend = "cuda";
        s->state = s->gpu.state;
        return DI_OK;
    }
    DI_TRY(create_host(&o, &backend, error));
    di_status status = di_inspect_state(&s->config, backend, &s->context, &s->state, error);
    s->backend = backend->name;
    backend->destroy(backend);
    return status;
}

/* ---- The verb ---- */

static di_status print(const di_args *args, const di_inspect_subject *s, di_error *error) {
    di_buffer out = DI_BUFFER_EMPTY;
    if (di_args_flag(args, DI_OPT_JSON)) {
        di_inspect_json(s, &out);
    } else {
        di_inspect_text(s, &out);
    }
    di_status status = DI_OK;
    if (out.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory printing");
    } else {
        fwrite(out.data, 1, out.size, stdout);
    }
    di_buffer_free(&out);
    return status;
}

di_status di_cmd_inspect(const di_args *args, di_error *error) {
    di_inspect_subject s = {.name = args->positional[0]};
    di_status status = open_subject(&s, di_args_flag(args, DI_OPT_DEEP), error);
    if (status == DI_OK) status = di_inspect_make(&s.config, s.checkpoint, &s.found, error);
    if (status == DI_OK) status = plan_state(args, &s, error);
    if (status == DI_OK) status = print(args, &s, error);
    di_checkpoint_close(s.checkpoint);
    return status;
}
