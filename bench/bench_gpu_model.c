/* bench_gpu: which layers, and their model. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "bench_gpu.h"
#include "kernels/queue.h"
#include "model/synth.h"
#include "model/synth_memory.h"

static di_synth_memory *own;
static uint64_t host_from; /* bytes of tables that stay in host memory; 0: none */

/* Left on the device beside weights and contexts: the peaks' own memory, the stall's, graphs. */
static const uint64_t RESERVE = UINT64_C(3) << 30;

/* ---- Layers ---- */

enum { ENGRAM, POOLED_SOURCE, PLAIN_SOURCE, REINDEX, REUSE, WINDOW, N_ROLES };
static const char *const role_names[N_ROLES] =
    {"Engram", "KV source of ratio > 1", "KV source of ratio 1", "reindex", "reuse", "window only"};

static void count_roles(const di_config *c, double count[N_ROLES]) {
    memset(count, 0, N_ROLES * sizeof *count);
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        const struct di_layer_role *r = &c->roles[i];
        int kind = r->ratio == 0        ? WINDOW
                   : r->is_kv_source    ? r->ratio > 1 ? POOLED_SOURCE : PLAIN_SOURCE
                   : r->is_index_source ? REINDEX
                                        : REUSE;
        count[kind]++;
        count[ENGRAM] += r->engram >= 0;
    }
}

/* How far a slice is from the whole in its mix of roles; a role that it lacks counts for ten. Short
 * runs cannot have window-only layers, which are the first, and the later ones too. */
static double distance(const di_config *slice, const di_config *all) {
    double have[N_ROLES], whole[N_ROLES], sum = 0;
    count_roles(slice, have);
    count_roles(all, whole);
    for (int i = 0; i < N_ROLES; i++) {
        double due = whole[i] * slice->num_hidden_layers / all->num_hidden_layers;
        sum += fabs(have[i] - due);
        if (i != WINDOW && whole[i] > 0 && have[i] == 0) sum += 10;
    }
    return sum;
}

typedef struct source {
    const char *json;
    size_t size;
    char *file; /* what json is, where it was read */
    di_config config;
} source;

static void read_source(bench *b, source *s) {
    *s = (source){0};
    s->json = di_config_builtin(b->config_name, &s->size);
    if (!s->json) {
        uint64_t size;
        must(b, di_file_read(b->config_name, 1 << 20, &s->file, &size, &b->error));
        s->json = s->file;
        s->size = (size_t)size;
    }
    must(b, di_config_parse(s->json, s->size, b->config_name, &s->config, &b->error));
}

/* The config of n layers from `first` on; first -1: of those that are listed, or of all. */
static void slice(bench *b, const source *s, int32_t first, int32_t n, di_buffer *json,
                  di_config *config) {
    di_synth_overrides o = di_synth_overrides_none();
    int32_t layers[DI_MAX_LAYERS];
    for (int32_t i = 0; i < n; i++) layers[i] = first + i;
    if (first >= 0) o.layers = layers, o.n_layers = n;
    if (b->n_listed > 0) o.layers = b->listed, o.n_layers = b->n_listed;
    o.draft_layers = b->draft_layers;
    o.experts = b->experts;
    o.engram_rows = b->engram_rows;
    o.no_vision = true;
    o.set = b->set;
    o.n_set = b->n_set;
    di_buffer_clear(json);
    must(b, di_synth_config(s->json, s->size, b->config_name, &o, json, &b->error));
    must(b, di_config_parse(json->data, json->size, b->config_name, config, &b->error));
}

/* The run of n layers whose roles are nearest to the whole's. */
static void choose_run(bench *b, const source *s, int32_t n, di_config *out) {
    int32_t all = s->config.num_hidden_layers, best = 0;
    double least = INFINITY;
    if (n > all) refuse("--layers: %d layers are more than the %d of the config", (int)n, (int)all);
    bool chosen = n < all && b->n_listed == 0;
    for (int32_t first = 0; chosen && first + n <= all; first++) {
        slice(b, s, first, n, &b->json, out);
        double far = distance(out, &s->config);
        if (far < least) least = far, best = first;
    }
    b->first_layer = chosen ? best : -1;
    slice(b, s, b->first_layer, n, &b->json, out);
}

/* ---- What fits ---- */

static uint64_t context_bytes(const bench *b, const di_config *c) {
    bench with = *b;
    int32_t most = 0;
    uint64_t largest = 0;
    with.config = c;
    for (int32_t i = 0; i < b->n_sizes; i++) most = b->sizes[i] > most ? b->sizes[i] : most;
    const di_core_options idle = idle_options(&with);
    const di_context_options options[] = {crowd_options(&with, most, b->context_tokens,
                                                        decode_room(b), false),
                                          crowd_options(&with, 1, b->prompt_tokens, 0, false),
                                          crowd_options(&with, verify_slots(b), b->context_tokens,
                                                        verify_room(&with),
                                                        c->num_nextn_predict_layers > 0),
                                          di_core_context_options(c, &idle)};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        uint64_t bytes = di_context_plan(c, b->backend, &options[i]).total;
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static bool fits(bench *b, const di_config *c) {
    di_placement place;
    must(b, di_model_place(c, b->backend, &place, &b->error));
    return place.device_bytes + context_bytes(b, c) + RESERVE <= b->backend->device_memory;
}

static void create_backend(bench *b) {
    double begin = now_s();
    if (b->cuda) {
        di_cuda_options options = {b->device, 0, host_from};
        must(b, di_backend_create_cuda(b->numerics, &options, &b->backend, &b->error));
    } else {
        di_cpu_options options = {b->threads, -1, ~0u};
        must(b, di_backend_create_cpu(b->numerics, &options, &b->backend, &b->error));
        must(b, di_backend_create_queue(b->backend, &b->backend, &b->error));
    }
    b->backend_s = now_s() - begin;
}

static void print_roles(const bench *b, const di_config *c) {
    double count[N_ROLES];
    di_buffer which = DI_BUFFER_EMPTY;
    if (b->n_listed > 0) {
        di_buffer_puts(&which, "layers");
        for (int32_t i = 0; i < b->n_listed; i++) di_buffer_printf(&which, " %d", b->listed[i]);
        di_buffer_puts(&which, " of it");
    } else if (b->first_layer >= 0) {
        di_buffer_printf(&which, "layers %d to %d of it", (int)b->first_layer,
                         (int)(b->first_layer + c->num_hidden_layers - 1));
    } else {
        di_buffer_puts(&which, "all layers");
    }
    if (which.failed) stop("no memory for the names of layers");
    printf("%s, %s: %d layers of width %d (%s), %d experts, %d draft layers\n  roles:",
           b->config_name, b->numerics == DI_NUMERICS_RELEASE ? "release" : "float",
           (int)c->num_hidden_layers, (int)c->hidden_size, which.data, (int)c->n_routed_experts,
           (int)c->num_nextn_predict_layers);
    di_buffer_free(&which);
    count_roles(c, count);
    for (int i = 0; i < N_ROLES; i++) printf("%s %.0f %s", i ? "," : "", count[i], role_names[i]);
    printf("\n");
}

void model_choose(bench *b) {
    source s;
    di_config c;
    di_placement place;
    read_source(b, &s);
    int32_t all = s.config.num_hidden_layers, n = b->layers > 0 ? b->layers : all;
    choose_run(b, &s, n, &c);
    options_settle(b, &c);
    must(b, di_model_place(&c, NULL, &place, &b->error));
    host_from = b->cuda ? place.host_from : 0;
    create_backend(b);
    while (b->cuda && b->layers == 0 && !fits(b, &c)) {
        if (--n == 0) stop("not one layer fits the device");
        choose_run(b, &s, n, &c);
    }
    printf("bench_gpu on %s\n", b->backend->device ? b->backend->device : b->backend->name);
    print_roles(b, &c);
    free(s.file);
}

/* ---- The model ---- */

static void remove_directory(const char *directory) {
    char path[4096 + 256];
    DIR *d = opendir(directory);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(directory);
}

/* A checkpoint of holes: headers and names; bind() is given the shared bytes in their place. */
static void open_shared(bench *b) {
    char directory[4096];
    const char *where = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/bench_gpu-XXXXXX", where && *where ? where : "/tmp");
    if (!mkdtemp(directory)) stop("cannot create a directory for the checkpoint's headers");
    di_synth_options options = {.config_json = b->json.data,
                                .config_size = b->json.size,
                                .seed = b->seed,
                                .sparse = true};
    di_model_options load = di_model_options_defaults();
    di_status status = di_synth_write(directory, &options, &b->error);
    weights_share(b);
    if (status == DI_OK) status = di_model_open(directory, b->backend, &load, &b->model, &b->error);
    remove_directory(directory); /* the model keeps its files mapped */
    must(b, status);
    weights_settle(b);
}

static void open_own(bench *b) {
    di_synth_options options = {.config_json = b->json.data,
                                .config_size = b->json.size,
                                .seed = b->seed};
    di_model_options load = di_model_options_defaults();
    double begin = now_s();
    must(b, di_synth_memory_create(&options, b->threads, &own, &b->error));
    b->made_s = now_s() - begin;
    begin = now_s();
    di_status status =
        di_model_open(di_synth_memory_directory(own), b->backend, &load, &b->model, &b->error);
    if (status == DI_OK) status = di_backend_sync(b->backend, &b->error);
    b->bound_s = now_s() - begin;
    di_synth_memory_destroy(own);
    must(b, status);
}

static void print_bytes(const bench *b) {
    const di_checkpoint *checkpoint = di_model_checkpoint(b->model);
    double near = 0, far = 0;
    for (int64_t i = 0; i < di_checkpoint_count(checkpoint); i++) {
        uint64_t bytes = di_checkpoint_at(checkpoint, i)->bytes;
        *(host_from > 0 && bytes >= host_from ? &far : &near) += (double)bytes;
    }
    printf("  weights: %.3f GB where the device computes, Engram tables of %.3f GB in host memory "
           "beside it%s\n",
           near * 1e-9, far * 1e-9, b->engram_rows > 0 ? ", rows cut by --engram-rows" : "");
}

void model_open(bench *b) {
    if (b->weights == WEIGHTS_OWN) {
        open_own(b);
    } else {
        double begin = now_s();
        weights_make(b, host_from);
        b->made_s = now_s() - begin;
        begin = now_s();
        open_shared(b);
        b->bound_s = now_s() - begin;
    }
    b->config = di_model_config(b->model);
    print_bytes(b);
    for (int32_t i = 0; i < b->config->n_engram_layers; i++)
        printf("  Engram table of layer %d: %lld rows\n", (int)b->config->engram_layer_ids[i],
               (long long)b->config->engram_num_embeddings[i]);
    if (b->weights == WEIGHTS_OWN)
        printf("  random bytes: each tensor has its own in host memory\n");
    else
        weights_report(b);
    printf("  made in %.2f s, opened and bound in %.2f s\n", b->made_s, b->bound_s);
    fflush(stdout);
}

void model_close(bench *b) {
    di_model_close(b->model);
    b->backend->destroy(b->backend);
    weights_free();
    di_buffer_free(&b->json);
}
