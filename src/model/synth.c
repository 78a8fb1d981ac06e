/* Writes a synthetic checkpoint: config.json, shards, index, tokenizer or token map.
 *
 * Nothing half-made is left behind: whatever ends the writing early, the files written so far are
 * removed, and the directory with them if it was made here. config.json comes last, because it is
 * what makes a directory a model.
 */
#include "model/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "model/engram.h"
#include "model/synth_plan.h"
#include "model/synth_values.h"

enum { CHUNK_BYTES = 1 << 20, TOKENIZER_MAX_BYTES = 256 << 20 };

typedef struct writer {
    const char *directory;
    const di_synth_options *o;
    di_error *error;
    di_config config;
    synth_plan plan;
    synth_tables *tables;
    uint8_t *chunk;
    uint64_t done;
    char **written; /* paths of the files made, for removal */
    int32_t n_written;
    bool made_directory;
} writer;

static di_status fail_memory(const writer *w) {
    return di_fail(w->error, DI_ERR_MEMORY, "out of memory writing %s", w->directory);
}

/* ---- Files ---- */

/* Creates a file that must not exist yet and remembers it. */
static di_status create_file(writer *w, const char *name, int *fd, const char **path) {
    size_t n = strlen(w->directory) + 1 + strlen(name) + 1;
    char **grown = realloc(w->written, (size_t)(w->n_written + 1) * sizeof *grown);
    if (!grown) return fail_memory(w);
    w->written = grown;
    char *full = malloc(n);
    if (!full) return fail_memory(w);
    snprintf(full, n, "%s/%s", w->directory, name);
    *fd = open(full, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd < 0) {
        di_status status = di_fail_errno(w->error, errno, "cannot create %s", full);
        free(full);
        return status;
    }
    w->written[w->n_written++] = full;
    *path = full;
    return DI_OK;
}

static di_status write_all(const writer *w, int fd, const char *path, const void *bytes, size_t n) {
    const uint8_t *at = bytes;
    while (n > 0) {
        ssize_t put = write(fd, at, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return di_fail_errno(w->error, errno, "cannot write %s", path);
        at += put;
        n -= (size_t)put;
    }
    return DI_OK;
}

static di_status close_file(const writer *w, int fd, const char *path, di_status status) {
    if (close(fd) != 0 && status == DI_OK) {
        return di_fail_errno(w->error, errno, "cannot write %s", path);
    }
    return status;
}

static di_status write_file(writer *w, const char *name, const char *bytes, size_t n) {
    int fd;
    const char *path;
    DI_TRY(create_file(w, name, &fd, &path));
    return close_file(w, fd, path, write_all(w, fd, path, bytes, n));
}

static di_status write_buffer(writer *w, const char *name, const di_buffer *text) {
    return text->failed ? fail_memory(w) : write_file(w, name, text->data, text->size);
}

/* ---- Tensors ---- */

static di_status write_tensor(writer *w, int fd, const char *path, const synth_entry *e,
                              synth_recipe *recipe) {
    synth__recipe_init(recipe, w->tables, &w->config, &e->spec, w->o->seed);
    uint64_t n = e->bytes / recipe->unit, step = CHUNK_BYTES / recipe->unit;
    for (uint64_t first = 0; first < n; first += step) {
        uint64_t count = n - first < step ? n - first : step;
        synth__fill(recipe, first, count, w->chunk);
        DI_TRY(write_all(w, fd, path, w->chunk, (size_t)(count * recipe->unit)));
        w->done += count * recipe->unit;
        if (w->o->progress && !w->o->progress(w->o->user, w->done, w->plan.total)) {
            return di_fail(w->error, DI_ERR_CANCELLED, "stopped; %s is removed again",
                           w->directory);
        }
    }
    return DI_OK;
}

/* A sparse file is its header and a length. */
static di_status write_tensors(writer *w, int fd, const char *path, int32_t shard, size_t header) {
    int64_t from = synth__plan_first(&w->plan, shard), to = synth__plan_first(&w->plan, shard + 1);
    if (w->o->sparse) {
        const synth_entry *last = &w->plan.entries[to - 1];
        uint64_t size = header + last->offset + last->bytes;
        if (ftruncate(fd, (off_t)size) != 0) {
            return di_fail_errno(w->error, errno, "cannot give %s %" PRIu64 " bytes", path, size);
        }
        w->done += last->offset + last->bytes;
        return DI_OK;
    }
    synth_recipe *recipe = malloc(sizeof *recipe);
    di_status status = recipe ? DI_OK : fail_memory(w);
    for (int64_t i = from; i < to && status == DI_OK; i++) {
        status = write_tensor(w, fd, path, &w->plan.entries[i], recipe);
    }
    free(recipe);
    return status;
}

static di_status write_shard(writer *w, int32_t shard) {
    int fd;
    const char *path;
    char name[64];
    di_buffer header = DI_BUFFER_EMPTY;
    synth__plan_file(&w->plan, shard, name);
    synth__plan_header(&w->plan, shard, &header);
    di_status status = header.failed ? fail_memory(w) : create_file(w, name, &fd, &path);
    if (status == DI_OK) {
        status = write_all(w, fd, path, header.data, header.size);
        if (status == DI_OK) status = write_tensors(w, fd, path, shard, header.size);
        status = close_file(w, fd, path, status);
    }
    di_buffer_free(&header);
    return status;
}

static di_status write_shards(writer *w) {
    for (int32_t i = 0; i < w->plan.n_shards; i++) DI_TRY(write_shard(w, i));
    if (w->plan.n_shards == 1) return DI_OK;
    di_buffer index = DI_BUFFER_EMPTY;
    synth__plan_index(&w->plan, &index);
    di_status status = write_buffer(w, "model.safetensors.index.json", &index);
    di_buffer_free(&index);
    return status;
}

/* ---- Tokenizer or token map ---- */

/* Files beside tokenizer.json that a model directory may have. */
static di_status copy_file(writer *w, const char *name, bool required) {
    char path[4096], *bytes;
    uint64_t n;
    if (snprintf(path, sizeof path, "%s/%s", w->o->tokenizer_dir, name) >= (int)sizeof path) {
        return di_fail(w->error, DI_ERR_USAGE, "the tokenizer's path is too long");
    }
    if (!required && access(path, F_OK) != 0) return DI_OK;
    DI_TRY(di_file_read(path, TOKENIZER_MAX_BYTES, &bytes, &n, w->error));
    di_status status = write_file(w, name, bytes, (size_t)n);
    free(bytes);
    return status;
}

/* The same check that loading the model will make. */
static di_status check_tokenizer(const writer *w) {
    char path[4096];
    di_tokenizer *tokenizer;
    di_engram engram = {0};
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", w->o->tokenizer_dir);
    if (n >= (int)sizeof path) {
        return di_fail(w->error, DI_ERR_USAGE, "the tokenizer's path is too long");
    }
    DI_TRY(di_tokenizer_load(path, &tokenizer, w->error));
    di_status status = DI_OK;
    if (w->config.n_engram_layers > 0) {
        status = di_engram_map_from_tokenizer(&w->config, tokenizer, path, &engram, w->error);
        di_engram_free(&engram);
    } else if (di_tokenizer_size(tokenizer) != w->config.vocab_size) {
        status = di_fail(w->error, DI_ERR_INVALID, "%s has %d ids, the config vocab_size %d", path,
                         (int)di_tokenizer_size(tokenizer), (int)w->config.vocab_size);
    }
    di_tokenizer_destroy(tokenizer);
    return status;
}

static di_status write_token_map(writer *w) {
    di_buffer text = DI_BUFFER_EMPTY;
    synth__token_map(&w->config, &text);
    di_status status = write_buffer(w, "token_map.json", &text);
    di_buffer_free(&text);
    return status;
}

static di_status write_vocabulary(writer *w) {
    if (!w->o->tokenizer_dir) return w->config.n_engram_layers > 0 ? write_token_map(w) : DI_OK;
    DI_TRY(copy_file(w, "tokenizer.json", true));
    DI_TRY(copy_file(w, "tokenizer_config.json", false));
    return copy_file(w, "generation_config.json", false);
}

/* ---- The directory ---- */

static di_status check_absent(const writer *w, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", w->directory, name);
    if (access(path, F_OK) != 0) return DI_OK;
    return di_fail(w->error, DI_ERR_USAGE,
                   "%s holds a model already (%s): choose another directory", w->directory, name);
}

static di_status prepare_directory(writer *w) {
    if (mkdir(w->directory, 0777) == 0) {
        w->made_directory = true;
        return DI_OK;
    }
    if (errno != EEXIST) {
        return di_fail_errno(w->error, errno, "cannot create directory %s", w->directory);
    }
    DI_TRY(check_absent(w, "config.json"));
    DI_TRY(check_absent(w, "tokenizer.json"));
    DI_TRY(check_absent(w, "token_map.json"));
    DI_TRY(check_absent(w, "model.safetensors"));
    return check_absent(w, "model.safetensors.index.json");
}

/* Better said before an hour of writing than after it. */
static di_status check_space(const writer *w) {
    struct statvfs fs;
    if (w->o->sparse || statvfs(w->directory, &fs) != 0) return DI_OK;
    uint64_t available = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (available >= w->plan.total) return DI_OK;
    return di_fail(w->error, DI_ERR_IO,
                   "%s needs %.2f GB, %.2f GB are free: take fewer layers, experts or Engram rows, "
                   "or a sparse checkpoint",
                   w->directory, (double)w->plan.total / 1e9, (double)available / 1e9);
}

static di_status write_checkpoint(writer *w) {
    DI_TRY(
        di_config_parse(w->o->config_json, w->o->config_size, "config.json", &w->config, w->error));
    DI_TRY(synth__plan_make(&w->config, w->o->n_shards, &w->plan, w->error));
    if (w->o->tokenizer_dir) DI_TRY(check_tokenizer(w));
    w->chunk = malloc(CHUNK_BYTES);
    w->tables = malloc(sizeof *w->tables);
    if (!w->chunk || !w->tables) return fail_memory(w);
    synth__tables_init(w->tables);
    DI_TRY(prepare_directory(w));
    DI_TRY(check_space(w));
    DI_TRY(write_shards(w));
    DI_TRY(write_vocabulary(w));
    return write_file(w, "config.json", w->o->config_json, w->o->config_size);
}

di_status di_synth_write(const char *directory, const di_synth_options *options, di_error *error) {
    writer w = {.directory = directory, .o = options, .error = error};
    di_status status = write_checkpoint(&w);
    for (int32_t i = 0; i < w.n_written; i++) {
        if (status != DI_OK) unlink(w.written[i]);
        free(w.written[i]);
    }
    if (status != DI_OK && w.made_directory) rmdir(directory);
    free(w.written);
    free(w.tables);
    free(w.chunk);
    synth__plan_free(&w.plan);
    return status;
}
