/* Synthetic checkpoints: reproducible to the byte, valid by the same checks as a real one, slices
 * with the values of the whole, and nothing left behind when interrupted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/checkpoint.h"
#include "model/engram.h"
#include "model/synth.h"
#include "support/temp.h"

#define TINY_A DI_SOURCE_DIR "/tests/data/golden/tiny-a/model"

static char *root; /* a temporary directory that every test writes below */

static int setup(void **state) {
    (void)state;
    root = temp_dir_create();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_dir_destroy(root);
    return 0;
}

static di_buffer make_config(const char *name, const di_synth_overrides *o) {
    size_t size;
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    const char *json = di_config_builtin(name, &size);
    if (di_synth_config(json, size, name, o, &out, &error) != DI_OK) fail_msg("%s", error.message);
    return out;
}

static di_config parse(const di_buffer *json) {
    di_config c;
    di_error error;
    if (di_config_parse(json->data, json->size, "slice", &c, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return c;
}

static di_config slice(const char *name, const di_synth_overrides *o) {
    di_buffer json = make_config(name, o);
    di_config c = parse(&json);
    di_buffer_free(&json);
    return c;
}

static di_synth_options options_of(const di_buffer *json) {
    return (di_synth_options){.config_json = json->data, .config_size = json->size};
}

/* Writes and opens; *config must stay where it is while the checkpoint is open. */
static di_checkpoint *write_and_open(const char *directory, const di_synth_options *options,
                                     di_config *config) {
    di_error error;
    di_checkpoint *checkpoint = NULL;
    if (di_synth_write(directory, options, &error) != DI_OK ||
        di_config_parse(options->config_json, options->config_size, "c", config, &error) != DI_OK ||
        di_checkpoint_open(directory, config, &checkpoint, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return checkpoint;
}

static uint64_t hash_file(const char *directory, const char *name) {
    size_t n;
    char *path = temp_printf("%s/%s", directory, name), *bytes = temp_read(path, &n);
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)bytes[i]) * 1099511628211u;
    free(bytes);
    free(path);
    return hash;
}

/* ---- Bytes ---- */

static void reproducible(void **state) {
    (void)state;
    di_synth_overrides none = di_synth_overrides_none();
    di_buffer json = make_config("tiny", &none);
    di_synth_options options = options_of(&json);
    di_config config;
    di_error error;
    char *a = temp_printf("%s/a", root), *b = temp_printf("%s/b", root),
         *c = temp_printf("%s/c", root);
    di_checkpoint *checkpoint = write_and_open(a, &options, &config);
    assert_int_equal(di_checkpoint_n_shards(checkpoint), 1);
    assert_int_equal(di_checkpoint_check_scales(checkpoint, true, &error), DI_OK);
    di_checkpoint_close(checkpoint);
    assert_int_equal(di_synth_write(b, &options, &error), DI_OK);
    uint64_t hash = hash_file(a, "model.safetensors");
    assert_int_equal(hash_file(b, "model.safetensors"), hash);
    /* the same on every machine and compiler, so it may stand here */
    assert_int_equal(hash, UINT64_C(9577492390489376403));
    options.seed = 1;
    assert_int_equal(di_synth_write(c, &options, &error), DI_OK);
    assert_int_not_equal(hash_file(c, "model.safetensors"), hash);
    assert_int_equal(hash_file(c, "config.json"), hash_file(a, "config.json"));
    free(a);
    free(b);
    free(c);
    di_buffer_free(&json);
}

static const uint8_t *bytes_of(const di_checkpoint *checkpoint, const char *name) {
    const di_tensor *t = di_checkpoint_find(checkpoint, name);
    if (!t) fail_msg("no tensor %s", name);
    return t->data;
}

static double e4m3(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double step = 1.0 / 512;
    for (int i = 1; i < exponent; i++) step *= 2;
    double value = step * (exponent ? 8 + mantissa : mantissa);
    return code & 0x80 ? -value : value;
}

/* Second moment of an FP8 matrix times K: its gain squared. */
static double gain_square(const di_checkpoint *checkpoint, const char *stem) {
    char *weight = temp_printf("%s.weight", stem), *scale = temp_printf("%s.scale", stem);
    const di_tensor *w = di_checkpoint_find(checkpoint, weight);
    const di_tensor *s = di_checkpoint_find(checkpoint, scale);
    double sum = 0;
    int64_t n = w->shape[0], k = w->shape[1];
    for (int64_t i = 0; i < n * k; i++) {
        assert_int_not_equal(w->data[i] & 0x7F, 0x7F); /* NaN */
        int exponent = s->data[i / k / 32 * s->shape[1] + i % k / 32] - 127;
        double value = e4m3(w->data[i]);
        for (; exponent < 0; exponent++) value /= 2;
        for (; exponent > 0; exponent--) value *= 2;
        sum += value * value;
    }
    free(weight);
    free(scale);
    return sum / (double)n;
}

/* Weights have the scale that keeps the network alive, and scales differ from block to block. */
static void scaled_values(void **state) {
    (void)state;
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 5;
    di_buffer json = make_config("tiny", &o);
    di_synth_options options = options_of(&json);
    di_config config;
    char *a = temp_printf("%s/scaled", root);
    di_checkpoint *c = write_and_open(a, &options, &config);
    double wq_b = gain_square(c, "layers.3.attn.wq_b");
    double wide = gain_square(c, "layers.1.engram.wkv");
    assert_true(wq_b > 0.6 * 1.7 * 1.7 && wq_b < 1.6 * 1.7 * 1.7); /* 16 tiles only */
    assert_true(wide > 0.8 && wide < 1.25);
    /* w1: gain 0.6 * swiglu_limit = 6 */
    double sum = 0;
    int seen[16] = {0}, scales[256] = {0}, n_scales = 0, used = 0;
    const uint8_t *w1 = bytes_of(c, "layers.0.ffn.experts.7.w1.weight");
    const uint8_t *s1 = bytes_of(c, "layers.0.ffn.experts.7.w1.scale");
    for (int i = 0; i < 64 * 128; i++) {
        int code = w1[i / 2] >> (i % 2 ? 4 : 0) & 15;
        double scale = 1;
        for (int e = s1[i / 32]; e < 127; e++) scale /= 2;
        sum += e2m1[code & 7] * e2m1[code & 7] * scale * scale;
        seen[code] = 1;
        n_scales += scales[s1[i / 32]]++ == 0;
    }
    for (int i = 0; i < 16; i++) used += seen[i];
    assert_true(sum / 64 > 0.7 * 36 && sum / 64 < 1.4 * 36);
    assert_int_equal(used, 16);
    assert_true(n_scales >= 3);
    di_checkpoint_close(c);
    free(a);
    di_buffer_free(&json);
}

/* Every tensor of a slice holds the first bytes of the whole model's tensor of that name. */
static void slice_shares_values(void **state) {
    (void)state;
    di_synth_overrides whole = di_synth_overrides_none(), part = di_synth_overrides_none();
    part.n_layers = 5;
    part.draft_layers = 1;
    part.experts = 3;
    part.engram_rows = 300;
    di_buffer whole_json = make_config("tiny", &whole), part_json = make_config("tiny", &part);
    di_synth_options whole_options = options_of(&whole_json), part_options = options_of(&part_json);
    di_config whole_config, part_config;
    part_options.n_shards = 4;
    char *a = temp_printf("%s/whole", root), *b = temp_printf("%s/part", root);
    di_checkpoint *w = write_and_open(a, &whole_options, &whole_config);
    di_checkpoint *p = write_and_open(b, &part_options, &part_config);
    assert_int_equal(di_checkpoint_n_shards(p), 4);
    assert_int_equal(part_config.n_routed_experts, 3);
    assert_true(part_config.engram_num_embeddings[0] < whole_config.engram_num_embeddings[0]);
    int compared = 0;
    for (int64_t i = 0; i < di_checkpoint_count(p); i++) {
        const di_tensor *t = di_checkpoint_at(p, i);
        /* one target fewer, one draft layer fewer: these have another shape or place */
        if (strncmp(t->name, "mtp.0.", 6) == 0 && !strstr(t->name, "ffn.")) continue;
        const di_tensor *same = di_checkpoint_find(w, t->name);
        assert_non_null(same);
        assert_true(same->bytes >= t->bytes);
        assert_memory_equal(t->data, same->data, (size_t)t->bytes);
        assert_int_equal((uintptr_t)t->data % di_dtype_bytes(t->dtype), 0); /* aligned */
        compared++;
    }
    assert_true(compared > 200);
    di_checkpoint_close(w);
    di_checkpoint_close(p);
    free(a);
    free(b);
    di_buffer_free(&whole_json);
    di_buffer_free(&part_json);
}

/* ---- Configs of slices ---- */

static void unchanged_config(void **state) {
    (void)state;
    di_synth_overrides none = di_synth_overrides_none();
    size_t size;
    di_error error;
    di_config before, after = slice("released", &none);
    const char *json = di_config_released(&size);
    assert_int_equal(di_config_parse(json, size, "released", &before, &error), DI_OK);
    assert_memory_equal(&after, &before, sizeof after);
}

static void first_layers(void **state) {
    (void)state;
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 4;
    o.experts = 16;
    o.engram_rows = 100000;
    di_config c = slice("released", &o);
    assert_int_equal(c.num_hidden_layers, 4);
    assert_int_equal(c.num_nextn_predict_layers, 3);
    assert_int_equal(c.compress_ratios[3], 2);
    assert_int_equal(c.compress_ratios[4], 0);
    assert_int_equal(c.n_kv_sources, 1);
    assert_int_equal(c.kv_source_layer_ids[0], 2);
    assert_int_equal(c.n_index_sources, 1);
    assert_int_equal(c.candidate_source_layer_id, -1);
    assert_int_equal(c.n_engram_layers, 1);
    assert_int_equal(c.engram_layer_ids[0], 1);
    assert_int_equal(c.engram_vocab_size, 4166);
    assert_int_equal(c.engram_num_embeddings[0], 102600);
    assert_int_equal(c.n_dspark_targets, 3);
    assert_int_equal(c.dspark_target_layer_ids[0], 1);
    assert_int_equal(c.dspark_target_layer_ids[2], 3);
    assert_int_equal(c.n_routed_experts, 16);
    assert_int_equal(c.num_experts_per_tok, 6);
    assert_int_equal(c.dspark_n_routed_experts, 16);
    assert_int_equal(c.vision.num_hidden_layers, 32);
    o.n_layers = 1;
    o.experts = 2;
    o.no_vision = true;
    c = slice("released", &o);
    assert_int_equal(c.n_engram_layers, 0);
    assert_int_equal(c.n_kv_sources, 0);
    assert_int_equal(c.n_dspark_targets, 1);
    assert_int_equal(c.num_experts_per_tok, 2);
    assert_int_equal(c.dspark_num_experts_per_tok, 2);
    assert_int_equal(c.vision.num_hidden_layers, 0);
    o = di_synth_overrides_none();
    o.draft_layers = 0;
    c = slice("released", &o);
    assert_int_equal(c.num_hidden_layers, 40);
    assert_int_equal(c.num_nextn_predict_layers, 0);
}

/* A choice of layers keeps their roles; a layer whose source is not chosen becomes one. */
static void chosen_layers(void **state) {
    (void)state;
    static const int32_t chosen[] = {1, 2, 3, 9, 20, 21, 25, 39};
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 8;
    o.layers = chosen;
    di_config c = slice("released", &o);
    static const int32_t ratios[] = {0, 2, 2, 2, 1, 1, 1, 1}, kv[] = {-1, 1, 1, 3, 4, 4, 4, 4};
    static const int32_t index[] = {-1, 1, 1, 3, 4, 4, 6, 7};
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(c.roles[i].ratio, ratios[i]);
        assert_int_equal(c.roles[i].kv_source, kv[i]);
        assert_int_equal(c.roles[i].index_source, index[i]);
        assert_int_equal(c.roles[i].uses_candidates, i == 6 || i == 7);
    }
    assert_int_equal(c.candidate_source_layer_id, 4);
    assert_int_equal(c.engram_layer_ids[0], 0);
    assert_int_equal(c.engram_num_embeddings[0], 384006168);
    assert_int_equal(c.dspark_target_layer_ids[0], 5); /* 37 and 38 are not there: the last three */
}

static void set_fields(void **state) {
    (void)state;
    static const char *const set[] = {"engram_vocab_size=50", "scoring_func=sigmoid",
                                      "bos_token_id=7"};
    di_synth_overrides o = di_synth_overrides_none();
    o.set = set;
    o.n_set = 3;
    di_config c = slice("tiny", &o);
    assert_int_equal(c.engram_vocab_size, 50);
    assert_int_equal(c.engram_num_embeddings[0], 53 + 59 + 61 + 67 + 71 + 73);
    assert_int_equal(c.scoring_func, DI_SCORING_SIGMOID);
    assert_int_equal(c.bos_token_id, 7);
}

static void check_config_refused(const di_synth_overrides *o, const char *message) {
    size_t size;
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    const char *json = di_config_released(&size);
    assert_int_not_equal(di_synth_config(json, size, "released", o, &out, &error), DI_OK);
    assert_string_equal(error.message, message);
    di_buffer_free(&out);
}

static void wrong_overrides(void **state) {
    (void)state;
    static const int32_t twice[] = {3, 3};
    static const char *const unknown[] = {"n_layers=3"}, *const bare[] = {"hidden_size"};
    static const char *const bad[] = {"hidden_size=100"};
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 41;
    check_config_refused(&o, "41 layers: released has 1 to 40 to choose from");
    o.n_layers = 2;
    o.layers = twice;
    check_config_refused(&o, "layer 3: expected ascending layers of released, which has 0 to 39");
    o = di_synth_overrides_none();
    o.draft_layers = 4;
    check_config_refused(&o, "4 draft layers: released has 3");
    o = di_synth_overrides_none();
    o.n_set = 1;
    o.set = unknown;
    check_config_refused(&o, "n_layers=3: released has no field of that name");
    o.set = bare;
    check_config_refused(&o, "hidden_size: expected KEY=VALUE");
    o.set = bad;
    check_config_refused(&o,
                         "released: text_config.hidden_size gives attn.wq_a a K of 100, expected "
                         "a multiple of 32 (one quantisation group)");
}

/* ---- Vocabulary ---- */

static void token_map(void **state) {
    (void)state;
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 2;
    di_buffer json = make_config("tiny", &o);
    di_synth_options options = options_of(&json);
    di_config config = parse(&json);
    di_error error;
    di_engram engram = {0};
    char *a = temp_printf("%s/map", root), *path = temp_printf("%s/map/token_map.json", root);
    assert_int_equal(di_synth_write(a, &options, &error), DI_OK);
    if (di_engram_map_from_file(&config, path, &engram, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    for (int32_t id = 0; id < 512; id++) assert_int_equal(engram.token_map[id], id / 2);
    assert_int_equal(engram.pad_class, 1);
    di_engram_free(&engram);
    free(path);
    free(a);
    di_buffer_free(&json);
}

static void tokenizer_taken_along(void **state) {
    (void)state;
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 2;
    o.tokenizer = TINY_A;
    di_buffer json = make_config("tiny", &o);
    di_config config = parse(&json);
    assert_int_equal(config.vocab_size, 384);
    assert_int_equal(config.engram_compressed_vocab_size, 339);
    assert_int_equal(config.dspark_noise_token_id, 383); /* 511 does not exist any more */
    di_synth_options options = options_of(&json);
    options.tokenizer_dir = TINY_A;
    char *a = temp_printf("%s/tokenizer", root), *map = temp_printf("%s/token_map.json", a);
    di_checkpoint *checkpoint = write_and_open(a, &options, &config);
    assert_int_equal(di_checkpoint_find(checkpoint, "head.weight")->shape[0], 384);
    di_checkpoint_close(checkpoint);
    assert_int_equal(hash_file(a, "tokenizer.json"), hash_file(TINY_A, "tokenizer.json"));
    assert_int_equal(access(map, F_OK), -1);
    free(map);
    free(a);
    di_buffer_free(&json);

    o.tokenizer = NULL; /* a config that was not made for the tokenizer */
    json = make_config("tiny", &o);
    options = options_of(&json);
    options.tokenizer_dir = TINY_A;
    di_error error;
    a = temp_printf("%s/unfit", root);
    assert_int_equal(di_synth_write(a, &options, &error), DI_ERR_INVALID);
    assert_string_equal(error.message,
                        TINY_A "/tokenizer.json has 384 ids, but config.json says "
                               "vocab_size 512; the tokenizer belongs to another model");
    assert_int_equal(access(a, F_OK), -1);
    free(a);
    di_buffer_free(&json);
}

/* ---- Failing well ---- */

static bool stop_halfway(void *user, uint64_t done, uint64_t total) {
    *(int *)user += 1;
    return done < total / 2;
}

static void interrupted(void **state) {
    (void)state;
    di_synth_overrides none = di_synth_overrides_none();
    di_buffer json = make_config("tiny", &none);
    di_synth_options options = options_of(&json);
    di_error error;
    int calls = 0;
    options.progress = stop_halfway;
    options.user = &calls;
    options.n_shards = 3;
    char *a = temp_printf("%s/stopped", root), *note = temp_printf("%s/note.txt", a);
    assert_int_equal(di_synth_write(a, &options, &error), DI_ERR_CANCELLED);
    char *message = temp_printf("stopped; %s is removed again", a);
    assert_string_equal(error.message, message);
    assert_true(calls > 10);
    assert_int_equal(access(a, F_OK), -1);
    assert_int_equal(mkdir(a, 0777), 0); /* what others put there stays */
    temp_write(note, "x", 1);
    assert_int_equal(di_synth_write(a, &options, &error), DI_ERR_CANCELLED);
    assert_int_equal(unlink(note), 0);
    assert_int_equal(rmdir(a), 0); /* nothing else was left */
    free(message);
    free(note);
    free(a);
    di_buffer_free(&json);
}

static void refused_targets(void **state) {
    (void)state;
    di_synth_overrides o = di_synth_overrides_none();
    o.n_layers = 1;
    di_buffer json = make_config("tiny", &o);
    di_synth_options options = options_of(&json);
    di_error error;
    char *a = temp_printf("%s/twice", root);
    assert_int_equal(di_synth_write(a, &options, &error), DI_OK);
    uint64_t hash = hash_file(a, "model.safetensors");
    assert_int_equal(di_synth_write(a, &options, &error), DI_ERR_USAGE);
    char *message =
        temp_printf("%s holds a model already (config.json): choose another directory", a);
    assert_string_equal(error.message, message);
    assert_int_equal(hash_file(a, "model.safetensors"), hash);
    free(message);
    assert_int_equal(di_synth_write("/nonexistent/a/b", &options, &error), DI_ERR_IO);
    assert_string_equal(error.message,
                        "cannot create directory /nonexistent/a/b: No such file or directory");
    options.n_shards = 1000;
    assert_int_equal(di_synth_write("/nonexistent/a/b", &options, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "1000 shards for 196 tensors: expected 1 to 196");
    free(a);
    di_buffer_free(&json);
}

/* ---- The full geometry ---- */

/* 475 GiB on a disk that need not have them, opened in a moment, with real bytes at the far end of
 * a table of 98 GB. */
static void sparse_release(void **state) {
    (void)state;
    di_synth_overrides none = di_synth_overrides_none();
    di_buffer json = make_config("released", &none);
    di_synth_options options = options_of(&json);
    options.sparse = true;
    di_config config;
    di_error error;
    char *a = temp_printf("%s/sparse", root);
    if (di_synth_write(a, &options, &error) != DI_OK) {
        /* a file system without large sparse files */
        if (!strstr(error.message, "File too large")) fail_msg("%s", error.message);
        free(a);
        di_buffer_free(&json);
        skip();
    }
    config = parse(&json);
    di_checkpoint *c;
    if (di_checkpoint_open(a, &config, &c, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_checkpoint_count(c), 96085);
    assert_int_equal(di_checkpoint_n_shards(c), 48);
    uint64_t apparent = 0, on_disk = 0;
    for (int32_t i = 0; i < 48; i++) {
        struct stat st;
        assert_int_equal(stat(di_checkpoint_shard_path(c, i), &st), 0);
        apparent += (uint64_t)st.st_size;
        on_disk += 512 * (uint64_t)st.st_blocks;
    }
    assert_true(apparent > UINT64_C(510286023000) && apparent < UINT64_C(510320000000));
    assert_true(on_disk < 64 << 20);

    const char *table = "layers.14.engram.embed.weight";
    uint64_t size = UINT64_C(384016682) * 256;
    assert_int_equal(di_synth_plant(a, table, size - 3, "abc", 3, &error), DI_OK);
    const di_tensor *t = di_checkpoint_find(c, table);
    assert_int_equal(t->bytes, size);
    assert_memory_equal(t->data + size - 4, "\0abc", 4);
    assert_int_equal(di_synth_plant(a, table, size - 2, "abc", 3, &error), DI_ERR_USAGE);
    assert_non_null(strstr(error.message, ": bytes 98308270590 to 98308270593 are outside tensor "
                                          "layers.14.engram.embed.weight of 98308270592"));
    assert_int_equal(di_synth_plant(a, "layers.99.x", 0, "abc", 3, &error), DI_ERR_USAGE);
    char *message = temp_printf("%s/model.safetensors.index.json has no tensor layers.99.x", a);
    assert_string_equal(error.message, message);
    free(message);
    di_checkpoint_close(c);
    free(a);
    di_buffer_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproducible),        cmocka_unit_test(scaled_values),
        cmocka_unit_test(slice_shares_values), cmocka_unit_test(unchanged_config),
        cmocka_unit_test(first_layers),        cmocka_unit_test(chosen_layers),
        cmocka_unit_test(set_fields),          cmocka_unit_test(wrong_overrides),
        cmocka_unit_test(token_map),           cmocka_unit_test(tokenizer_taken_along),
        cmocka_unit_test(interrupted),         cmocka_unit_test(refused_targets),
        cmocka_unit_test(sparse_release),
    };
    return cmocka_run_group_tests_name("synth", tests, setup, teardown);
}
