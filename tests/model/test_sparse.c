/* The released geometry, 475 GiB as sparse files with one prompt's path planted: it opens, a
 * forward pass stays under 12 GB of resident memory, its logits are those of a small checkpoint
 * that holds the same values, and every planted place matters.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/checkpoint.h"
#include "model/model.h"
#include "model/synth.h"
#include "model/synth_path.h"
#include "support/temp.h"

enum { SHALLOW_LAYERS = 4 };

typedef struct checkpoint {
    char *directory;
    di_config config;
    di_path path;
} checkpoint;

typedef struct fixture {
    char *base; /* of the others */
    checkpoint full, slice, shallow;
} fixture;

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

/* The same for a child process, which must not run on through cmocka. */
static void child_must(di_status status, const di_error *error) {
    if (status == DI_OK) return;
    fprintf(stderr, "%s\n", error->message);
    _exit(1);
}

/* A sparse checkpoint from a config, with the path of `ids` planted. */
static void build(const fixture *f, const char *name, const char *json, size_t size,
                  const int32_t *ids, checkpoint *out) {
    const char *directory = out->directory = temp_printf("%s/%s", f->base, name);
    di_config *config = &out->config;
    di_path *path = &out->path;
    di_error error;
    di_synth_options options = {.config_json = json,
                                .config_size = size,
                                .seed = 3,
                                .sparse = true};
    must(di_synth_write(directory, &options, &error), &error);
    must(di_config_parse(json, size, "config", config, &error), &error);
    must(di_path_plant_into(directory, config, ids, 3, path, &error), &error);
}

/* Bytes on the disk. */
static int64_t disk_bytes(const char *directory) {
    int64_t total = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) total += st.st_blocks * 512;
    }
    closedir(d);
    return total;
}

/* In the child: logits of the path's prompt, at every position. */
static void forward(const char *directory, const di_path *path, float *logits) {
    di_error error;
    di_backend *backend;
    di_model *model;
    di_context *context;
    di_cpu_options cpu = {0, 0, ~0u};
    child_must(di_backend_create_cpu(DI_NUMERICS_FLOAT, &cpu, &backend, &error), &error);
    di_model_options load = di_model_options_defaults();
    load.release_layers = true;
    child_must(di_model_open(directory, backend, &load, &model, &error), &error);
    di_context_options options = {.n_slots = 1, .max_context = 64, .max_rows = 4, .max_out = 4};
    child_must(di_context_create(model, &options, &context, &error), &error);
    di_row rows[DI_PATH_TOKENS];
    int32_t out[DI_PATH_TOKENS];
    for (int32_t i = 0; i < DI_PATH_TOKENS; i++) {
        rows[i] = (di_row){path->ids[i], 0, i};
        out[i] = i;
    }
    di_step step = {.rows = rows,
                    .n_rows = DI_PATH_TOKENS,
                    .out_rows = out,
                    .n_out = DI_PATH_TOKENS};
    child_must(di_forward(context, &step, &error), &error);
    child_must(di_context_read_logits(context, logits, &error), &error);
    di_context_destroy(context);
    di_model_close(model);
    backend->destroy(backend);
}

/* What the system keeps of the files, zeros above all, is let go: to get 14 GB of memory for it takes
 * longer than all else here. What is read again and again, and is small, is kept. */
static void let_go(const char *directory) {
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    closedir(d);
}

/* Runs forward in a process of its own; returns its peak resident bytes. logits: shared memory. */
static int64_t forward_apart(const checkpoint *at, float *logits) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        forward(at->directory, &at->path, logits);
        _exit(0);
    }
    int status;
    struct rusage usage;
    pid_t ended;
    for (int i = 0; (ended = wait4(pid, &status, WNOHANG, &usage)) == 0; i++) {
        if (at->config.num_hidden_layers > SHALLOW_LAYERS && i % 20 == 0) let_go(at->directory);
        usleep(10000);
    }
    assert_int_equal(ended, pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (int64_t)usage.ru_maxrss * 1024;
}

static size_t logits_bytes(const checkpoint *of) {
    return DI_PATH_TOKENS * (size_t)of->config.vocab_size * sizeof(float);
}

static float *shared_logits(const checkpoint *of) {
    void *memory =
        mmap(NULL, logits_bytes(of), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* A small model of the same width and expert width: its attention sees zeros only, as that of the
 * full one does. tokenizer: its vocabulary, and a path of its own; NULL: those of the full one. */
static void build_slice(const fixture *f, const char *name, int32_t n_layers, const char *tokenizer,
                        checkpoint *out) {
    static const char *const set[] = {"num_attention_heads=8", "q_lora_rank=64", "o_lora_rank=32",
                                      "index_n_heads=4"};
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = n_layers;
    o.experts = 8;
    o.engram_rows = 100000;
    o.no_vision = true;
    o.draft_layers = 0;
    o.set = set;
    o.n_set = 4;
    o.tokenizer = tokenizer;
    di_buffer text = DI_BUFFER_EMPTY;
    di_error error;
    size_t size;
    const char *json = di_config_released(&size);
    must(di_synth_config(json, size, "released", &o, &text, &error), &error);
    build(f, name, text.data, text.size, tokenizer ? NULL : f->full.path.ids, out);
    di_buffer_free(&text);
}

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    *state = f;
    f->base = temp_dir_create();
    size_t size;
    const char *json = di_config_released(&size);
    build(f, "full", json, size, NULL, &f->full);
    build_slice(f, "slice", 0, NULL, &f->slice);
    /* Of few tokens: to read the released head's zeros takes longer than all else. */
    build_slice(f, "shallow", SHALLOW_LAYERS, DI_SOURCE_DIR "/models/demo", &f->shallow);
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    temp_dir_destroy(f->base);
    free(f->full.directory);
    free(f->slice.directory);
    free(f->shallow.directory);
    free(f);
    return 0;
}

static void test_geometry(void **state) {
    fixture *f = *state;
    di_error error;
    di_checkpoint *files;
    must(di_checkpoint_open(f->full.directory, &f->full.config, &files, &error), &error);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < di_checkpoint_count(files); i++) {
        bytes += di_checkpoint_at(files, i)->bytes;
    }
    assert_int_equal(di_checkpoint_count(files), 96085);
    assert_int_equal(bytes, 510286023000);
    di_checkpoint_close(files);
    assert_true(disk_bytes(f->full.directory) < 1000000000);
    /* beyond 4 GiB, so that a 32-bit offset would miss it */
    assert_true(f->full.path.sites[0].offset > (uint64_t)90 << 30);
}

static void test_same_as_slice(void **state) {
    fixture *f = *state;
    float *full = shared_logits(&f->full), *slice = shared_logits(&f->slice);
    int64_t peak = forward_apart(&f->full, full);
    forward_apart(&f->slice, slice);
    print_message("  peak resident memory %.2f GB\n", (double)peak / 1e9);
    assert_true(peak < 12000000000);
    float largest = 0;
    for (size_t i = 0; i < logits_bytes(&f->full) / sizeof *full; i++) {
        largest = full[i] > largest ? full[i] : largest;
    }
    assert_true(largest > 0);
    assert_memory_equal(full, slice, logits_bytes(&f->full));
    munmap(full, logits_bytes(&f->full));
    munmap(slice, logits_bytes(&f->slice));
}

/* Zeroing any one site must show: on four layers of the model; on all of it with DI_ACCURATE=1
 * (make accurate), where each of the 20 passes reads 14 GB of holes. */
static void test_every_site_matters(void **state) {
    fixture *f = *state;
    const checkpoint *at = getenv("DI_ACCURATE") ? &f->full : &f->shallow;
    size_t bytes = logits_bytes(at);
    float *want = shared_logits(at), *got = shared_logits(at);
    di_error error;
    forward_apart(at, want);
    for (int32_t i = 0; i < at->path.n_sites; i++) {
        const di_path_site *site = &at->path.sites[i];
        uint8_t *zero = calloc(1, (size_t)site->bytes);
        assert_non_null(zero);
        must(di_synth_plant(at->directory, site->tensor, site->offset, zero, site->bytes, &error),
             &error);
        free(zero);
        forward_apart(at, got);
        if (memcmp(got, want, bytes) == 0) fail_msg("%s does not matter", site->tensor);
        di_path only = at->path;
        only.sites[0] = *site;
        only.n_sites = 1;
        must(di_path_plant(at->directory, &at->config, &only, 3, &error), &error);
    }
    assert_true(at->path.n_sites >= 20);
    forward_apart(at, got);
    assert_memory_equal(got, want, bytes);
    munmap(want, bytes);
    munmap(got, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_same_as_slice),
        cmocka_unit_test(test_every_site_matters),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
