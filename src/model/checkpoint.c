/* A model directory: its shards opened, their tensors in one table, the table checked against the
 * contract.
 *
 * With an index, the shards are those that it names, and it must agree with their headers: a tensor
 * in another shard than it says means that files of different downloads were mixed. Without one
 * there is a single model.safetensors.
 */
#include "model/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "model/dtype_names.h"
#include "model/tensor_index.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

enum { INDEX_MAX_BYTES = 100000000, MAX_SHARDS = 1024, SCALE_PIECE = 1 << 20 };

typedef struct shard {
    const char *name; /* in the directory */
    const char *path;
    di_safetensors *file;
} shard;

struct di_checkpoint {
    const char *directory;
    const di_config *config;
    di_arena arena; /* names and paths */
    shard *shards;
    int32_t n_shards;
    di_tensor *tensors;
    int64_t n_tensors;
    di_tensor_index index;
};

static di_status fail_memory(const di_checkpoint *c, di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory opening %s", c->directory);
}

static const char *join(di_arena *arena, const char *directory, const char *name) {
    size_t n = strlen(directory) + 1 + strlen(name) + 1;
    char *path = di_arena_alloc(arena, n);
    if (path) snprintf(path, n, "%s/%s", directory, name);
    return path;
}

static int32_t find_shard(const di_checkpoint *c, const char *name) {
    /* the last ones first: an index names the tensors of one shard together */
    for (int32_t i = c->n_shards - 1; i >= 0; i--) {
        if (strcmp(c->shards[i].name, name) == 0) return i;
    }
    return -1;
}

static di_status add_shard(di_checkpoint *c, const char *name, di_error *error) {
    if (find_shard(c, name) >= 0) return DI_OK;
    if (c->n_shards == MAX_SHARDS) {
        return di_fail(error, DI_ERR_INVALID, "%s/" INDEX_NAME " names more than %d files",
                       c->directory, (int)MAX_SHARDS);
    }
    if ((c->n_shards & (c->n_shards - 1)) == 0) { /* grows at powers of two */
        size_t capacity = c->n_shards ? 2 * (size_t)c->n_shards : 1;
        shard *grown = realloc(c->shards, capacity * sizeof *grown);
        if (!grown) return fail_memory(c, error);
        c->shards = grown;
    }
    shard *s = &c->shards[c->n_shards];
    s->file = NULL;
    s->name = di_arena_strndup(&c->arena, name, strlen(name));
    s->path = s->name ? join(&c->arena, c->directory, s->name) : NULL;
    if (!s->path) return fail_memory(c, error);
    c->n_shards++;
    return DI_OK;
}

/* ---- The index ---- */

static di_status add_indexed(di_checkpoint *c, const di_json *entry, di_error *error) {
    const char *name = entry->text;
    if (!di_name_is_plain(entry->key, entry->key_length)) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s/" INDEX_NAME ": the name of a tensor has a control character",
                       c->directory);
    }
    if (entry->type != DI_JSON_STRING || entry->length == 0 ||
        !di_name_is_plain(name, entry->length) || strchr(name, '/') || strcmp(name, "..") == 0) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s/" INDEX_NAME ": tensor %.200s: its value is not the name of a file in "
                       "the directory",
                       c->directory, entry->key);
    }
    int32_t before = c->n_shards;
    DI_TRY(add_shard(c, name, error));
    struct stat st;
    if (c->n_shards > before && stat(c->shards[before].path, &st) != 0) {
        return di_fail_errno(error, errno,
                             "%s/" INDEX_NAME " names %.200s (for tensor %.200s), which cannot be "
                             "read",
                             c->directory, name, entry->key);
    }
    return DI_OK;
}

static di_status read_index(di_checkpoint *c, const di_json *document, const di_json **map,
                            di_error *error) {
    *map = di_json_get(document, "weight_map");
    if (!*map || (*map)->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s/" INDEX_NAME ": weight_map is missing or no object", c->directory);
    }
    for (const di_json *entry = (*map)->first; entry; entry = entry->next) {
        DI_TRY(add_indexed(c, entry, error));
    }
    return DI_OK;
}

/* Every entry must be where it says; the tensor table is complete by now. */
static di_status check_index(const di_checkpoint *c, const di_json *map, di_error *error) {
    for (const di_json *entry = map->first; entry; entry = entry->next) {
        const di_tensor *t = di_checkpoint_find(c, entry->key);
        if (!t) {
            return di_fail(error, DI_ERR_INVALID,
                           "%s/" INDEX_NAME " says that tensor %.200s is in %.200s, which does not "
                           "have it",
                           c->directory, entry->key, entry->text);
        }
        if (strcmp(c->shards[t->shard].name, entry->text) != 0) {
            return di_fail(error, DI_ERR_INVALID,
                           "%s/" INDEX_NAME " says that tensor %.200s is in %.200s, but it is in "
                           "%.200s",
                           c->directory, entry->key, entry->text, c->shards[t->shard].name);
        }
    }
    return DI_OK;
}

/* ---- Shards and the table of tensors ---- */

static di_status open_shards(di_checkpoint *c, di_error *error) {
    for (int32_t i = 0; i < c->n_shards; i++) {
        DI_TRY(di_safetensors_open(c->shards[i].path, &c->shards[i].file, error));
        c->n_tensors += di_safetensors_count(c->shards[i].file);
    }
    return DI_OK;
}

static di_status collect_tensors(di_checkpoint *c, di_error *error) {
    int64_t total = c->n_tensors, at = 0;
    c->tensors = calloc(total > 0 ? (size_t)total : 1, sizeof *c->tensors);
    if (!c->tensors || !di_tensor_index_init(&c->index, total)) return fail_memory(c, error);
    for (int32_t s = 0; s < c->n_shards; s++) {
        const di_safetensors *file = c->shards[s].file;
        for (int64_t i = 0; i < di_safetensors_count(file); i++, at++) {
            c->tensors[at] = *di_safetensors_at(file, i);
            c->tensors[at].shard = s;
            int64_t first = di_tensor_index_add(&c->index, c->tensors, at);
            if (first == at) continue;
            return di_fail(error, DI_ERR_INVALID, "%s: tensor %.200s is in %s and in %s",
                           c->directory, c->tensors[at].name,
                           c->shards[c->tensors[first].shard].name, c->shards[s].name);
        }
    }
    return DI_OK;
}

/* ---- The contract ---- */

static di_status fail_absent(const di_checkpoint *c, const di_tensor_spec *spec, di_error *error) {
    char shape[96];
    size_t n = strlen(spec->name);
    di_shape_print(shape, sizeof shape, spec->shape, spec->n_dims);
    if (n > 6 && strcmp(spec->name + n - 6, ".scale") == 0) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: tensor %s is missing: the scale of %.*s.weight, expected %s %s",
                       c->directory, spec->name, (int)(n - 6), spec->name,
                       di_dtype_name(spec->dtype), shape);
    }
    return di_fail(error, DI_ERR_INVALID, "%s: tensor %s is missing, expected %s %s", c->directory,
                   spec->name, di_dtype_name(spec->dtype), shape);
}

static bool same_shape(const di_tensor *t, const di_tensor_spec *spec) {
    if (t->n_dims != spec->n_dims) return false;
    for (int32_t i = 0; i < t->n_dims; i++) {
        if (t->shape[i] != spec->shape[i]) return false;
    }
    return true;
}

static di_status check_spec(void *user, const di_tensor_spec *spec, di_error *error) {
    const di_checkpoint *c = user;
    const di_tensor *t = di_checkpoint_find(c, spec->name);
    if (!t) return spec->required ? fail_absent(c, spec, error) : DI_OK;
    const char *path = c->shards[t->shard].path;
    if (t->dtype != spec->dtype) {
        return di_fail(error, DI_ERR_INVALID, "%s: tensor %s is %s, expected %s", path, t->name,
                       di_dtype_name(t->dtype), di_dtype_name(spec->dtype));
    }
    if (!same_shape(t, spec)) {
        char found[96], expected[96];
        return di_fail(error, DI_ERR_INVALID,
                       "%s: tensor %s has shape %s, expected %s by config.json", path, t->name,
                       di_shape_print(found, sizeof found, t->shape, t->n_dims),
                       di_shape_print(expected, sizeof expected, spec->shape, spec->n_dims));
    }
    return DI_OK;
}

static di_status load_files(di_checkpoint *c, const di_json *document, di_error *error) {
    const di_json *map = NULL;
    if (document) {
        DI_TRY(read_index(c, document, &map, error));
    } else {
        DI_TRY(add_shard(c, SINGLE_NAME, error));
    }
    DI_TRY(open_shards(c, error));
    DI_TRY(collect_tensors(c, error));
    if (map) DI_TRY(check_index(c, map, error));
    return di_contract_each(c->config, check_spec, c, error);
}

/* With an index its parsed form lives until the tensors have been compared with it. */
static di_status load_indexed(di_checkpoint *c, const char *path, di_error *error) {
    char *text;
    uint64_t size;
    DI_TRY(di_file_read(path, INDEX_MAX_BYTES, &text, &size, error));
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *document;
    di_status status = di_json_parse(text, (size_t)size, path, &arena, &document, error);
    if (status == DI_OK) status = load_files(c, document, error);
    di_arena_free(&arena);
    free(text);
    return status;
}

static di_status load(di_checkpoint *c, di_error *error) {
    const char *index = join(&c->arena, c->directory, INDEX_NAME);
    const char *single = join(&c->arena, c->directory, SINGLE_NAME);
    struct stat st;
    if (!index || !single) return fail_memory(c, error);
    if (stat(c->directory, &st) != 0) {
        return di_fail_errno(error, errno, "cannot open model directory %s", c->directory);
    }
    if (!S_ISDIR(st.st_mode)) {
        return di_fail(error, DI_ERR_IO, "%s is not a directory", c->directory);
    }
    if (stat(index, &st) == 0) return load_indexed(c, index, error);
    if (errno != ENOENT) return di_fail_errno(error, errno, "cannot open %s", index);
    if (stat(single, &st) != 0 && errno == ENOENT) {
        return di_fail(error, DI_ERR_IO,
                       "%s has neither " SINGLE_NAME " nor " INDEX_NAME ": not a model directory",
                       c->directory);
    }
    return load_files(c, NULL, error);
}

di_status di_checkpoint_open(const char *directory, const di_config *config, di_checkpoint **out,
                             di_error *error) {
    *out = NULL;
    di_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return di_fail(error, DI_ERR_MEMORY, "out of memory opening %s", directory);
    c->config = config;
    c->directory = di_arena_strndup(&c->arena, directory, strlen(directory));
    di_status status = DI_OK;
    if (!c->directory) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory opening %s", directory);
    } else {
        status = load(c, error);
    }
    if (status == DI_OK) {
        *out = c;
    } else {
        di_checkpoint_close(c);
    }
    return status;
}

void di_checkpoint_close(di_checkpoint *c) {
    if (!c) return;
    di_tensor_index_deinit(&c->index);
    free(c->tensors);
    for (int32_t i = 0; i < c->n_shards; i++) di_safetensors_close(c->shards[i].file);
    free(c->shards);
    di_arena_free(&c->arena);
    free(c);
}

const di_tensor *di_checkpoint_find(const di_checkpoint *c, const char *name) {
    int64_t i = di_tensor_index_find(&c->index, c->tensors, name);
    return i < 0 ? NULL : &c->tensors[i];
}

int64_t di_checkpoint_count(const di_checkpoint *c) { return c->n_tensors; }

const di_tensor *di_checkpoint_at(const di_checkpoint *c, int64_t i) { return &c->tensors[i]; }

int32_t di_checkpoint_n_shards(const di_checkpoint *c) { return c->n_shards; }

const char *di_checkpoint_shard_path(const di_checkpoint *c, int32_t i) {
    return c->shards[i].path;
}

/* ---- Scales ---- */

typedef struct scale_check {
    const di_checkpoint *checkpoint;
    bool deep;
} scale_check;

/* The two kinds of scales that make up most of the bytes. */
static bool is_bulk(const char *name) {
    return strstr(name, ".ffn.experts.") || strstr(name, ".engram.embed.");
}

/* The first byte 255, or NULL. What was read is given back, in pieces: scales of a table may have
 * gigabytes. */
static const uint8_t *find_nan(const di_tensor *t) {
    const uint8_t *bad = NULL;
    for (uint64_t at = 0; at < t->bytes && !bad; at += SCALE_PIECE) {
        uint64_t n = t->bytes - at < SCALE_PIECE ? t->bytes - at : SCALE_PIECE;
        di_tensor piece = *t;
        piece.data += at;
        piece.bytes = n;
        bad = memchr(piece.data, 255, (size_t)n);
        di_tensor_release(&piece);
    }
    return bad;
}

static di_status check_scale(void *user, const di_tensor_spec *spec, di_error *error) {
    const scale_check *s = user;
    if (spec->dtype != DI_F8_E8M0 || (!s->deep && is_bulk(spec->name))) return DI_OK;
    const di_tensor *t = di_checkpoint_find(s->checkpoint, spec->name);
    if (!t || t->bytes == 0) return DI_OK; /* optional and absent */
    const uint8_t *bad = find_nan(t);
    int64_t at = bad ? bad - t->data : 0, k = t->shape[1];
    if (!bad) return DI_OK;
    return di_fail(error, DI_ERR_INVALID,
                   "%s: tensor %s: scale [%" PRId64 ", %" PRId64 "] is byte 255 (NaN)",
                   s->checkpoint->shards[t->shard].path, t->name, at / k, at % k);
}

di_status di_checkpoint_check_scales(const di_checkpoint *checkpoint, bool deep, di_error *error) {
    scale_check s = {checkpoint, deep};
    return di_contract_each(checkpoint->config, check_scale, &s, error);
}
