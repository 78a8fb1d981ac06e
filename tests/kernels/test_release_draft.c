/* Release numerics of drafting: every stored operation of the `draft` scopes, through the operations
 * that the model calls, for every backend; and mistakes that the rule must see.
 *
 * Two things could hide here: a stored operation that nothing runs, and one that passes although the
 * model calls something else. So operations are counted on their way into the backend, every stored
 * one must belong to one of them, and what di_draft itself enqueues must be the same operations.
 */
/* ctest: gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/device.h"
#include "support/golden.h"
#include "support/release_coarse.h"
#include "support/release_runner.h"
#include "support/release_vectors.h"

static const char *const directories[2] = {"tests/data/golden/tiny-a", "tests/data/golden/tiny-b"};
enum { STORED_A = 7 + 3 * 34, STORED_B = 7 + 2 * 34 }; /* stored operations of all draft scopes */

/* ---- Operations, counted ---- */

#define OP_ID(name) OP_##name,
#define OP_NAME(name) #name,
#define OP_COUNTED(name)                                                                           \
    static void counted_##name(di_stream *stream, const di_##name##_args *args) {                  \
        calls[OP_##name]++;                                                                        \
        behind->name(stream, args);                                                                \
    }
#define OP_MEMBER(name) .name = counted_##name,

enum { DI_EACH_OP(OP_ID) N_OPS };
static const char *const op_names[N_OPS] = {DI_EACH_OP(OP_NAME)};
static int calls[N_OPS];
static const di_ops *behind;
DI_EACH_OP(OP_COUNTED)
static const di_ops counted = {DI_EACH_OP(OP_MEMBER)};

static void count_calls(di_backend *backend) {
    behind = backend->ops;
    backend->ops = &counted;
    memset(calls, 0, sizeof calls);
}

static int op_of(const char *name) {
    for (int i = 0; i < N_OPS; i++) {
        if (strcmp(op_names[i], name) == 0) return i;
    }
    fail_msg("there is no operation %s", name);
    return -1;
}

/* ---- Which operation of the model is made of which stored ones ---- */

enum { MOST_STORED = 8 };
static const struct part {
    const char *operation;
    bool fused; /* run from the first stored operation to the last; else each by itself */
    const char *stored[MOST_STORED + 1];
} parts[] = {
    {"linear", false, {"main_proj"}},
    {"rms_norm", false, {"main_norm"}},
    {"window_kv", true, {"ring_wkv", "ring_kv_norm", "ring_kv_rope", "ring_kv_quant"}},
    {"mix", false, {"hc_attn", "hc_ffn"}},
    {"sublayer_in", true, {"attn_collapse", "attn_norm"}},
    {"sublayer_in", true, {"ffn_collapse", "ffn_norm"}},
    {"qkv", true, {"wq_a", "q_norm", "wq_b", "q_rope", "wkv", "kv_norm", "kv_rope", "kv_quant"}},
    {"attend", true, {"attend", "o_rope"}},
    {"attn_out", true, {"wo_a", "wo_b"}},
    {"sublayer_out", false, {"attn_expand", "ffn_expand"}},
    {"route", false, {"router"}},
    {"experts", true, {"expert_w1", "expert_w3", "expert_h", "expert_w2"}},
    {"shared_expert", true, {"shared_w1", "shared_w3", "shared_h", "shared_w2"}},
    {"combine", false, {"moe_sum"}},
    {"head", true, {"draft_collapse", "draft_norm", "base_logits"}},
    {"markov", true, {"markov", "confidence"}},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static const struct part *part_of(const release_op *op, bool *first) {
    for (int i = 0; i < N_PARTS; i++) {
        for (int j = 0; parts[i].stored[j] != NULL; j++) {
            if (strcmp(parts[i].stored[j], op->op) != 0) continue;
            *first = j == 0;
            return &parts[i];
        }
    }
    fail_msg("%s.%s belongs to no operation of the model", op->scope, op->op);
    return NULL;
}

/* ---- Scopes ---- */

static bool is_numbered(const char *scope, const char *word, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%d", word, (int)i);
        if (strcmp(name, scope) == 0) return true;
    }
    return false;
}

/* Whether this is a scope of drafts; one that nobody knows fails the test. */
static bool is_draft(const release_file *file, const char *scope) {
    const di_config *c = &file->config;
    if (strcmp(scope, "draft") == 0) return true;
    if (is_numbered(scope, "draft", c->num_nextn_predict_layers)) return true;
    if (!is_numbered(scope, "layer", c->num_hidden_layers) && strcmp(scope, "model") != 0 &&
        strcmp(scope, "synthetic") != 0) {
        fail_msg("scope %s is unknown", scope);
    }
    return false;
}

/* The draft operations of a file; every draft layer has some. */
static int list_drafts(const release_file *file, release_op *out) {
    static release_op all[RELEASE_MAX_OPS];
    int n_all = release_list(file, all), n = 0;
    for (int i = 0; i < n_all; i++) {
        if (is_draft(file, all[i].scope)) out[n++] = all[i];
    }
    for (int32_t layer = -1; layer < file->config.num_nextn_predict_layers; layer++) {
        char scope[32] = "draft";
        int found = 0;
        if (layer >= 0) snprintf(scope, sizeof scope, "draft%d", (int)layer);
        for (int i = 0; i < n; i++) found += strcmp(out[i].scope, scope) == 0;
        assert_int_equal(found, layer < 0 ? 7 : 34);
    }
    return n;
}

/* ---- Every stored operation ---- */

static void open_both(release_file *file, device *dev, const char *directory, const char *backend) {
    release_open(file, directory);
    if (!device_open(dev, backend, DI_NUMERICS_RELEASE, 2)) {
        release_close(file);
        print_message("%s: this machine cannot run it\n", backend);
        skip();
    }
    di_limits limits = release_limits(file);
    device_prepare(dev, &limits);
    count_calls(dev->backend);
}

/* By itself, and as part of the model's operation. Returns how many outputs were compared by the
 * former. */
static int64_t run_one(const release_file *file, const release_op *op, device *dev,
                       release_score *alone, release_score *fused) {
    bool first;
    const struct part *part = part_of(op, &first);
    int id = op_of(part->operation), before = calls[id];
    int64_t outputs = alone->outputs;
    if (!release_run(file, op, dev, alone)) fail_msg("%s.%s was not run", op->scope, op->op);
    assert_int_equal(alone->outputs - outputs, release_count_outputs_of(file, op));
    if (part->fused) {
        int64_t compared = fused->outputs;
        before = calls[id];
        assert_int_equal(release_run_coarse(file, op, dev, fused), first);
        if (!first) return alone->outputs - outputs;
        assert_true(fused->outputs > compared);
    }
    if (calls[id] == before) fail_msg("%s.%s ran without %s", op->scope, op->op, part->operation);
    return alone->outputs - outputs;
}

static void run_all(int which, const char *backend) {
    static release_op ops[RELEASE_MAX_OPS];
    release_file file;
    device dev;
    release_score alone = {0}, fused = {0};
    open_both(&file, &dev, directories[which], backend);
    int n = list_drafts(&file, ops), n_fused = 0;
    int64_t outputs = 0;
    assert_int_equal(n, which == 0 ? STORED_A : STORED_B);
    for (int i = 0; i < n; i++) {
        bool first;
        outputs += run_one(&file, &ops[i], &dev, &alone, &fused);
        n_fused += part_of(&ops[i], &first)->fused;
        if (device_reset(&dev) > 0) {
            fail_msg("%s.%s wrote beside its outputs", ops[i].scope, ops[i].op);
        }
    }
    if (release_finish(&alone) + release_finish(&fused) > 0) {
        fail_msg("%s, %s: %s %s", backend, directories[which], alone.first, fused.first);
    }
    print_message("%s, %s: %d draft operations in %d scopes, %lld outputs; %d of them in fused "
                  "ones, %lld outputs; FP32 within %.1e\n",
                  backend, directories[which], n, 1 + (int)file.config.num_nextn_predict_layers,
                  (long long)outputs, n_fused, (long long)fused.outputs,
                  alone.worst_f32 > fused.worst_f32 ? alone.worst_f32 : fused.worst_f32);
    device_close(&dev);
    release_close(&file);
}

static void test_a(void **state) { run_all(0, (const char *)*state); }
static void test_b(void **state) { run_all(1, (const char *)*state); }

/* ---- What the model calls ---- */

/* Operations of a draft that no stored one is about: integers, copies, the pick of a token. The
 * embedding is that of scope `model`. */
static bool is_plain(const char *name) {
    static const char *const plain[] = {"step_begin", "embed", "sample", "window_store", "to_f32"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(plain[i], name) == 0) return true;
    }
    return false;
}

static void expect_calls(const char *what, const char *const *needed) {
    for (int i = 0; needed[i] != NULL; i++) {
        if (calls[op_of(needed[i])] == 0) fail_msg("%s does not call %s", what, needed[i]);
    }
}

static void check_model(const char *directory) {
    char path[256];
    test_model m;
    di_error error;
    const int32_t ids[4] = {5, 6, 7, 8}, slot = 0;
    snprintf(path, sizeof path, "%s/model", directory);
    di_context_options context = {.n_slots = 1,
                                  .max_context = 64,
                                  .max_rows = 16,
                                  .max_out = 16,
                                  .drafts = true};
    test_model_open(&m, path, &(test_model_options){TEST_REF, DI_NUMERICS_RELEASE, 1, context});
    count_calls(m.backend);
    test_feed(&m, 0, ids, 4, NULL, 0);
    assert_int_equal(calls[OP_window_kv], m.config->num_nextn_predict_layers);
    memset(calls, 0, sizeof calls);
    di_draft_step step = {.slots = &slot, .n = 1, .anchors = ids};
    if (di_draft(m.context, &step, &error) != DI_OK) fail_msg("%s", error.message);
    for (int i = 0; i < N_OPS; i++) {
        bool known = calls[i] == 0 || is_plain(op_names[i]);
        for (int j = 0; j < N_PARTS && !known; j++) {
            known = strcmp(parts[j].operation, op_names[i]) == 0;
        }
        if (!known) fail_msg("di_draft calls %s, which no stored operation tests", op_names[i]);
    }
    static const char *const needed[] = {"mix",      "sublayer_in",   "qkv",   "attend",
                                         "attn_out", "sublayer_out",  "route", "experts",
                                         "combine",  "shared_expert", "head",  "markov",
                                         NULL};
    expect_calls("di_draft", needed);
    assert_int_equal(calls[OP_markov], m.config->dspark_block_size);
    test_model_close(&m);
}

static void test_model_calls_them(void **state) {
    (void)state;
    check_model(directories[0]);
    check_model(directories[1]);
}

/* ---- Mistakes ---- */

/* Where each shows first. */
static const char *const shows[RELEASE_N_MISTAKES] = {
    [RELEASE_RIGHT] = "",
    [RELEASE_CONFIDENCE_NORMED] = "draft.confidence.out",
    [RELEASE_MARKOV_OF_TOKEN] = "draft.markov.out",
    [RELEASE_MARKOV_OF_ANCHOR] = "draft.markov.out",
    [RELEASE_RING_UNNORMED] = "draft0.ring_kv_quant.out.codes",
    [RELEASE_POSITIONS_LATE] = "draft0.q_rope.out",
    [RELEASE_BLOCK_CAUSAL] = "draft0.o_rope.out",
    [RELEASE_WINDOW_SHORT] = "draft0.o_rope.out",
    [RELEASE_BACKBONE_NORM] = "draft.draft_norm.out",
};

static void plant(int which, const char *backend, release_mistake mistake) {
    static release_op ops[RELEASE_MAX_OPS];
    release_file file;
    device dev;
    release_score score = {0};
    open_both(&file, &dev, directories[which], backend);
    int n = list_drafts(&file, ops);
    for (int i = 0; i < n; i++) {
        release_run_planted(&file, &ops[i], &dev, &score, mistake);
        device_reset(&dev);
    }
    int64_t complaints = release_finish(&score);
    if ((complaints > 0) != (mistake != RELEASE_RIGHT) ||
        strncmp(score.first, shows[mistake], strlen(shows[mistake])) != 0) {
        fail_msg("%s, %s: mistake %d has %lld complaints; %s", backend, directories[which],
                 (int)mistake, (long long)complaints, score.first);
    }
    device_close(&dev);
    release_close(&file);
}

static void test_mistakes_are_caught(void **state) {
    for (int which = 0; which < 2; which++) {
        for (int mistake = 0; mistake < RELEASE_N_MISTAKES; mistake++) {
            plant(which, (const char *)*state, (release_mistake)mistake);
        }
    }
}

int main(void) {
    static char ref[] = "ref", cpu[] = "cpu", cuda[] = "cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_a, ref),
        cmocka_unit_test_prestate(test_b, ref),
        cmocka_unit_test_prestate(test_a, cpu),
        cmocka_unit_test_prestate(test_b, cpu),
        cmocka_unit_test(test_model_calls_them),
        cmocka_unit_test_prestate(test_mistakes_are_caught, ref),
        cmocka_unit_test_prestate(test_mistakes_are_caught, cpu),
        {"test_a_cuda", test_a, NULL, NULL, cuda},
        {"test_b_cuda", test_b, NULL, NULL, cuda},
        {"test_mistakes_are_caught_cuda", test_mistakes_are_caught, NULL, NULL, cuda},
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
