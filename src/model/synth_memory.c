#include "model/synth_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/team.h"
#include "model/synth_plan.h"
#include "model/synth_values.h"

/* Elements that are drawn; the largest prime below a million and a bit, so that rows of any usual
 * width begin at different places of it. */
enum { DRAWN = 1048573, MAX_UNIT = 4, MAX_FILES = 1024 + 3 };

typedef struct memory_file {
    char name[64];
    int fd;
} memory_file;

struct di_synth_memory {
    char directory[4096];
    bool made;
    memory_file files[MAX_FILES];
    int n_files;
};

/* ---- Files ---- */

/* A memory file of `size` bytes, mapped for writing, and its link in the directory. */
static di_status add_file(di_synth_memory *m, const char *name, uint64_t size, uint8_t **out,
                          di_error *error) {
    char target[64], link[4096 + 80];
    if (m->n_files == MAX_FILES) return di_fail(error, DI_ERR_LIMIT, "too many shards");
    memory_file *file = &m->files[m->n_files];
    snprintf(file->name, sizeof file->name, "%s", name);
    file->fd = memfd_create(name, MFD_CLOEXEC);
    if (file->fd < 0) return di_fail_errno(error, errno, "cannot make a file in memory");
    m->n_files++;
    if (ftruncate(file->fd, (off_t)size) != 0) {
        return di_fail_errno(error, errno, "cannot take %" PRIu64 " bytes of memory", size);
    }
    void *bytes = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED) return di_fail_errno(error, errno, "cannot map %s in memory", name);
    *out = bytes;
    snprintf(target, sizeof target, "/proc/self/fd/%d", file->fd);
    snprintf(link, sizeof link, "%s/%s", m->directory, name);
    if (symlink(target, link) == 0) return DI_OK;
    di_status status = di_fail_errno(error, errno, "cannot create %s", link);
    munmap(bytes, (size_t)size);
    return status;
}

static di_status add_text(di_synth_memory *m, const char *name, const char *text, size_t size,
                          di_error *error) {
    uint8_t *bytes;
    DI_TRY(add_file(m, name, size, &bytes, error));
    memcpy(bytes, text, size);
    munmap(bytes, size);
    return DI_OK;
}

static di_status add_buffer(di_synth_memory *m, const char *name, const di_buffer *text,
                            di_error *error) {
    if (text->failed) return di_fail(error, DI_ERR_MEMORY, "out of memory: %s", name);
    return add_text(m, name, text->data, text->size, error);
}

/* ---- Values ---- */

typedef struct filler {
    const di_synth_options *o;
    const di_config *config;
    const synth_plan *plan;
    int64_t end; /* entries of this shard are below it */
    uint8_t *to; /* the shard's tensor bytes */
    _Atomic int64_t next;
    _Atomic uint64_t done; /* bytes, of all shards */
    _Atomic bool stopped, failed;
} filler;

/* What a member needs of its own. */
typedef struct scratch {
    synth_tables tables;
    synth_recipe recipe;
    uint8_t drawn[(DRAWN + 3) * MAX_UNIT];
} scratch;

static void fill_tensor(filler *f, scratch *s, const synth_entry *e) {
    synth__recipe_init(&s->recipe, &s->tables, f->config, &e->spec, f->o->seed);
    uint8_t *to = f->to + e->offset;
    uint64_t n = e->bytes / s->recipe.unit, period = (uint64_t)DRAWN * s->recipe.unit;
    synth__fill(&s->recipe, 0, n < DRAWN ? n : DRAWN, s->drawn);
    for (uint64_t at = 0; at < e->bytes; at += period) {
        memcpy(to + at, s->drawn, (size_t)(e->bytes - at < period ? e->bytes - at : period));
    }
}

static void fill_some(void *user, int32_t member, int32_t n_members) {
    filler *f = user;
    (void)n_members;
    scratch *s = malloc(sizeof *s);
    if (!s) {
        f->failed = true;
        return;
    }
    synth__tables_init(&s->tables);
    while (!f->stopped) {
        int64_t i = f->next++;
        if (i >= f->end) break;
        fill_tensor(f, s, &f->plan->entries[i]);
        f->done += f->plan->entries[i].bytes;
        if (member == 0 && f->o->progress && !f->o->progress(f->o->user, f->done, f->plan->total)) {
            f->stopped = true;
        }
    }
    free(s);
}

static di_status fill_shard(di_synth_memory *m, filler *f, int32_t shard, di_team *team,
                            di_error *error) {
    char name[64];
    uint8_t *bytes;
    di_buffer header = DI_BUFFER_EMPTY;
    synth__plan_file(f->plan, shard, name);
    synth__plan_header(f->plan, shard, &header);
    int64_t first = synth__plan_first(f->plan, shard);
    f->end = synth__plan_first(f->plan, shard + 1);
    const synth_entry *last = &f->plan->entries[f->end - 1];
    uint64_t size = header.size + last->offset + last->bytes;
    di_status status = header.failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: header")
                                     : add_file(m, name, size, &bytes, error);
    if (status == DI_OK) {
        memcpy(bytes, header.data, header.size);
        f->to = bytes + header.size;
        f->next = first;
        di_team_run(team, fill_some, f);
        munmap(bytes, (size_t)size);
        if (f->failed) status = di_fail(error, DI_ERR_MEMORY, "out of memory: random weights");
        if (f->stopped) status = di_fail(error, DI_ERR_CANCELLED, "stopped making weights");
    }
    di_buffer_free(&header);
    return status;
}

/* ---- The directory ---- */

/* As the system estimates it; memory that is not there would be taken from running programs. */
static di_status check_memory(uint64_t needed, di_error *error) {
    char line[160];
    unsigned long long kib = 0;
    FILE *info = fopen("/proc/meminfo", "re");
    if (!info) return DI_OK;
    while (kib == 0 && fgets(line, sizeof line, info)) {
        (void)sscanf(line, "MemAvailable: %llu", &kib);
    }
    fclose(info);
    if (kib == 0 || needed <= (uint64_t)kib * 1024) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY,
                   "random weights of this config take %.2f GB, %.2f GB of memory are free: take "
                   "fewer layers, experts or Engram rows",
                   (double)needed / 1e9, (double)kib * 1024 / 1e9);
}

static di_status make_directory(di_synth_memory *m, di_error *error) {
    const char *where = getenv("TMPDIR");
    if (!where || !*where) where = "/tmp";
    int n = snprintf(m->directory, sizeof m->directory, "%s/deepinfer-XXXXXX", where);
    if (n >= (int)sizeof m->directory) {
        return di_fail(error, DI_ERR_USAGE, "the path in TMPDIR is too long");
    }
    if (!mkdtemp(m->directory)) {
        return di_fail_errno(error, errno, "cannot create a directory in %s", where);
    }
    m->made = true;
    return DI_OK;
}

static di_status fill_all(di_synth_memory *m, const di_synth_options *o, const di_config *config,
                          const synth_plan *plan, di_team *team, di_error *error) {
    filler f = {.o = o, .config = config, .plan = plan};
    di_buffer text = DI_BUFFER_EMPTY;
    di_status status = DI_OK;
    for (int32_t i = 0; i < plan->n_shards; i++) {
        DI_TRY(fill_shard(m, &f, i, team, error));
    }
    if (plan->n_shards > 1) {
        synth__plan_index(plan, &text);
        status = add_buffer(m, "model.safetensors.index.json", &text, error);
    }
    if (status == DI_OK && config->n_engram_layers > 0) {
        di_buffer_clear(&text);
        synth__token_map(config, &text);
        status = add_buffer(m, "token_map.json", &text, error);
    }
    di_buffer_free(&text);
    if (status != DI_OK) return status;
    return add_text(m, "config.json", o->config_json, o->config_size, error);
}

static di_status create(di_synth_memory *m, const di_synth_options *o, int32_t n_threads,
                        di_error *error) {
    di_config config;
    synth_plan plan = {0};
    di_team *team = NULL;
    di_status status;
    DI_TRY(di_config_parse(o->config_json, o->config_size, "config.json", &config, error));
    DI_TRY_DONE(synth__plan_make(&config, o->n_shards, &plan, error));
    DI_TRY_DONE(check_memory(plan.total, error));
    DI_TRY_DONE(make_directory(m, error));
    DI_TRY_DONE(di_team_create(n_threads, -1, &team, error));
    status = fill_all(m, o, &config, &plan, team, error);
done:
    di_team_destroy(team);
    synth__plan_free(&plan);
    return status;
}

di_status di_synth_memory_create(const di_synth_options *options, int32_t n_threads,
                                 di_synth_memory **out, di_error *error) {
    *out = NULL;
    di_synth_memory *m = calloc(1, sizeof *m);
    if (!m) return di_fail(error, DI_ERR_MEMORY, "out of memory: random weights");
    di_status status = create(m, options, n_threads, error);
    if (status == DI_OK) {
        *out = m;
    } else {
        di_synth_memory_destroy(m);
    }
    return status;
}

const char *di_synth_memory_directory(const di_synth_memory *memory) { return memory->directory; }

void di_synth_memory_destroy(di_synth_memory *memory) {
    if (!memory) return;
    for (int i = 0; i < memory->n_files; i++) {
        char link[4096 + 80];
        snprintf(link, sizeof link, "%s/%s", memory->directory, memory->files[i].name);
        unlink(link);
        close(memory->files[i].fd);
    }
    if (memory->made) rmdir(memory->directory);
    free(memory);
}
