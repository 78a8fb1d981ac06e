/* One safetensors file: u64 little-endian header length, JSON header, tensor bytes.
 *
 * The header is outside input and is checked to the last rule of the format before any pointer is
 * handed out: every tensor's bytes follow from shape and dtype, tensors neither overlap nor leave
 * gaps, and together they fill the file to its last byte. So a shard that is one byte short is
 * found on opening, and never read as zeros.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "model/dtype_names.h"
#include "model/tensor_index.h"

enum { HEADER_MAX_BYTES = 100000000 }; /* the limit of the format's reference reader */

struct di_safetensors {
    di_map map;
    di_arena names;
    di_tensor *tensors;
    int64_t n;
    di_tensor_index index;
};

typedef struct loader {
    di_safetensors *file;
    const char *path;
    uint64_t data_at, data_bytes; /* where tensor bytes begin in the file, and how many there are */
    di_error *error;
} loader;

static di_status fail_tensor(const loader *l, const char *name, const char *reason) {
    return di_fail(l->error, DI_ERR_INVALID, "%s: tensor %.200s: %s", l->path, name, reason);
}

static di_status fail_memory(const loader *l) {
    return di_fail(l->error, DI_ERR_MEMORY, "out of memory reading the header of %s", l->path);
}

static di_status read_shape(const loader *l, const di_json *list, di_tensor *t) {
    uint64_t bytes = di_dtype_bytes(t->dtype);
    if (!list || list->type != DI_JSON_ARRAY) {
        return fail_tensor(l, t->name, "shape is missing or no list");
    }
    if (list->length > sizeof t->shape / sizeof *t->shape) {
        return fail_tensor(l, t->name, "more than 4 dimensions");
    }
    for (const di_json *item = list->first; item; item = item->next) {
        int64_t size;
        if (!di_json_int64(item, &size) || size < 0) {
            return fail_tensor(l, t->name, "a dimension is no integer from 0");
        }
        if (size > 0 && bytes > UINT64_MAX / (uint64_t)size) {
            return fail_tensor(l, t->name, "its size overflows 64 bits");
        }
        bytes *= (uint64_t)size;
        t->shape[t->n_dims++] = size;
    }
    t->bytes = bytes;
    return DI_OK;
}

/* Checks a tensor's span against its own size; whether it lies in the file is check_spans' part. */
static di_status read_offsets(const loader *l, const di_json *list, const di_tensor *t,
                              uint64_t *begin) {
    int64_t from, to;
    if (!list || list->type != DI_JSON_ARRAY || list->length != 2 ||
        !di_json_int64(list->first, &from) || !di_json_int64(list->first->next, &to) || from < 0 ||
        to < 0) {
        return fail_tensor(l, t->name, "data_offsets are not two integers from 0");
    }
    if (to < from) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: tensor %.200s: data_offsets [%" PRId64 ", %" PRId64 "] run backwards",
                       l->path, t->name, from, to);
    }
    if ((uint64_t)(to - from) != t->bytes) {
        char shape[96];
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: tensor %.200s: data_offsets [%" PRId64 ", %" PRId64 "] span %" PRId64
                       " bytes, %s %s needs %" PRIu64,
                       l->path, t->name, from, to, to - from, di_dtype_name(t->dtype),
                       di_shape_print(shape, sizeof shape, t->shape, t->n_dims), t->bytes);
    }
    *begin = (uint64_t)from;
    return DI_OK;
}

static di_status read_tensor(const loader *l, const di_json *entry, di_tensor *t, uint64_t *begin) {
    if (!di_name_is_plain(entry->key, entry->key_length)) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: the name of tensor %" PRId64 " of the header has a control character",
                       l->path, l->file->n);
    }
    t->name = di_arena_strndup(&l->file->names, entry->key, entry->key_length);
    if (!t->name) return fail_memory(l);
    if (entry->type != DI_JSON_OBJECT) return fail_tensor(l, t->name, "its entry is no object");
    const di_json *dtype = di_json_get(entry, "dtype");
    if (!dtype || dtype->type != DI_JSON_STRING) {
        return fail_tensor(l, t->name, "dtype is missing or no string");
    }
    t->dtype = di_dtype_from_name(dtype->text, dtype->length);
    if (t->dtype == DI_N_DTYPES && !di_name_is_plain(dtype->text, dtype->length)) {
        return fail_tensor(l, t->name, "dtype has a control character");
    }
    if (t->dtype == DI_N_DTYPES) {
        return di_fail(l->error, DI_ERR_INVALID, "%s: tensor %.200s: unknown dtype %.40s", l->path,
                       t->name, dtype->text);
    }
    DI_TRY(read_shape(l, di_json_get(entry, "shape"), t));
    return read_offsets(l, di_json_get(entry, "data_offsets"), t, begin);
}

typedef struct span {
    uint64_t begin, end;
    const char *name;
} span;

static int compare_spans(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors first */
}

/* The tensors in order of their bytes: no overlap, no gap, nothing left at the end. */
static di_status check_spans(const loader *l, span *spans, int64_t n) {
    uint64_t end = 0;
    qsort(spans, (size_t)n, sizeof *spans, compare_spans);
    for (int64_t i = 0; i < n; i++) {
        const span *s = &spans[i];
        if (s->begin < end) {
            return di_fail(l->error, DI_ERR_INVALID,
                           "%s: tensors %.200s and %.200s overlap: bytes %" PRIu64 " to %" PRIu64,
                           l->path, spans[i - 1].name, s->name, s->begin,
                           s->end < end ? s->end : end);
        }
        if (s->begin > end && s->end > l->data_bytes) {
            return di_fail(l->error, DI_ERR_INVALID,
                           "%s: tensor %.200s: data_offsets [%" PRIu64 ", %" PRIu64
                           "] are out of range, the file holds %" PRIu64 " bytes of tensors",
                           l->path, s->name, s->begin, s->end, l->data_bytes);
        }
        if (s->begin > end) {
            return di_fail(l->error, DI_ERR_INVALID,
                           "%s: bytes %" PRIu64 " to %" PRIu64 " before tensor %.200s belong to no "
                           "tensor",
                           l->path, end, s->begin, s->name);
        }
        end = s->end;
    }
    if (end > l->data_bytes) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s is truncated: its header describes %" PRIu64
                       " bytes of tensors, it holds "
                       "%" PRIu64 " (%" PRIu64 " missing); fetch the file again",
                       l->path, end, l->data_bytes, end - l->data_bytes);
    }
    if (end < l->data_bytes) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: %" PRIu64 " bytes after the last tensor belong to no tensor", l->path,
                       l->data_bytes - end);
    }
    return DI_OK;
}

static di_status read_entries(const loader *l, const di_json *document, span *spans) {
    di_safetensors *file = l->file;
    for (const di_json *entry = document->first; entry; entry = entry->next) {
        if (entry->key_length == 12 && memcmp(entry->key, "__metadata__", 12) == 0) continue;
        di_tensor *t = &file->tensors[file->n];
        uint64_t begin = 0;
        DI_TRY(read_tensor(l, entry, t, &begin));
        spans[file->n] = (span){begin, begin + t->bytes, t->name};
        /* A name that appears twice was refused by the JSON reader. */
        di_tensor_index_add(&file->index, file->tensors, file->n);
        /* Not dereferenced before check_spans has shown that it lies inside. */
        t->data = (const uint8_t *)((uintptr_t)file->map.data + l->data_at + begin);
        file->n++;
    }
    return DI_OK;
}

static di_status read_document(const loader *l, const di_json *document) {
    di_safetensors *file = l->file;
    if (document->type != DI_JSON_OBJECT) {
        return di_fail(l->error, DI_ERR_INVALID, "%s: its header is no JSON object", l->path);
    }
    size_t n = document->length ? document->length : 1;
    span *spans = calloc(n, sizeof *spans);
    file->tensors = calloc(n, sizeof *file->tensors);
    di_status status = DI_OK;
    if (!spans || !file->tensors || !di_tensor_index_init(&file->index, (int64_t)n)) {
        status = fail_memory(l);
    }
    if (status == DI_OK) status = read_entries(l, document, spans);
    if (status == DI_OK) status = check_spans(l, spans, file->n);
    free(spans);
    return status;
}

static uint64_t load_u64(const uint8_t *p) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static di_status read_header(loader *l) {
    const di_map *map = &l->file->map;
    if (map->size < 8) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s has %" PRIu64 " bytes, too few for a safetensors file", l->path,
                       map->size);
    }
    uint64_t header = load_u64(map->data);
    if (header > map->size - 8) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: its header of %" PRIu64 " bytes is larger than the file of %" PRIu64,
                       l->path, header, map->size);
    }
    if (header > HEADER_MAX_BYTES) {
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: its header of %" PRIu64
                       " bytes is larger than the %d that are accepted",
                       l->path, header, (int)HEADER_MAX_BYTES);
    }
    l->data_at = 8 + header;
    l->data_bytes = map->size - l->data_at;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *document;
    di_status status = di_json_parse((const char *)map->data + 8, (size_t)header, l->path, &arena,
                                     &document, l->error);
    if (status == DI_OK) status = read_document(l, document);
    di_arena_free(&arena);
    return status;
}

di_status di_safetensors_open(const char *path, di_safetensors **out, di_error *error) {
    *out = NULL;
    di_safetensors *file = calloc(1, sizeof *file);
    if (!file) return di_fail(error, DI_ERR_MEMORY, "out of memory opening %s", path);
    loader l = {file, path, 0, 0, error};
    di_status status = di_map_open(&file->map, path, error);
    if (status == DI_OK) status = read_header(&l);
    if (status == DI_OK) {
        *out = file;
    } else {
        di_safetensors_close(file);
    }
    return status;
}

void di_safetensors_close(di_safetensors *file) {
    if (!file) return;
    di_tensor_index_deinit(&file->index);
    free(file->tensors);
    di_arena_free(&file->names);
    di_map_close(&file->map);
    free(file);
}

int64_t di_safetensors_count(const di_safetensors *file) { return file->n; }

const di_tensor *di_safetensors_at(const di_safetensors *file, int64_t i) {
    return &file->tensors[i];
}

const di_tensor *di_safetensors_find(const di_safetensors *file, const char *name) {
    int64_t i = di_tensor_index_find(&file->index, file->tensors, name);
    return i < 0 ? NULL : &file->tensors[i];
}

uint64_t di_safetensors_offset(const di_safetensors *file, const di_tensor *tensor) {
    return (uint64_t)(tensor->data - file->map.data);
}

void di_tensor_read_by_rows(const di_tensor *tensor) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)tensor->data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)tensor->data + (uintptr_t)tensor->bytes) / page * page;
    if (from >= to) return;
    (void)madvise((void *)from, (size_t)(to - from), MADV_RANDOM);
    (void)madvise((void *)from, (size_t)(to - from), MADV_NOHUGEPAGE);
}

void di_tensor_release(const di_tensor *tensor) {
    if (tensor->bytes == 0) return;
    /* Whole pages, neighbours' bytes in the first and last included: they are read again from the
     * file when touched, since the mapping is read-only. */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)tensor->data / page * page;
    uintptr_t to = (uintptr_t)tensor->data + (uintptr_t)tensor->bytes;
    madvise((void *)from, (size_t)(to - from), MADV_DONTNEED);
}
