/* The door of the model: what is refused, in which words, and that a refusal changes nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/network.h"
#include "support/golden.h"

#define TINY_A "tests/data/golden/tiny-a/model" /* 384 ids */

static test_model m;
static di_error error;

static int open_model(void **state) {
    (void)state;
    di_context_options context = {.n_slots = 2,
                                  .max_context = 128,
                                  .max_rows = 32,
                                  .max_out = 32,
                                  .penalties = true,
                                  .replay = true,
                                  .drafts = true,
                                  .n_pages = 4};
    test_model_open(&m, TINY_A, &(test_model_options){TEST_LATE, DI_NUMERICS_FLOAT, 1, context});
    assert_int_equal(m.config->vocab_size, 384);
    return di_context_set_pages(m.context, 0, 0, (const int32_t[]){0, 1}, 2, &error) != DI_OK;
}

static int close_model(void **state) {
    (void)state;
    test_model_close(&m);
    return 0;
}

static void refused(di_status got, di_status want, const char *message) {
    if (got == want && strcmp(error.message, message) == 0) return;
    fail_msg("%d, \"%s\"; expected %d, \"%s\"", got, got == DI_OK ? "" : error.message, want,
             message);
}

/* ---- Steps ---- */

typedef struct step_parts {
    di_row rows[4];
    int32_t out[2];
    di_sample_params params[2];
    di_logit_bias biases[2];
    uint32_t masks[16];
    di_step step;
} step_parts;

/* Two rows of slot 0, the second sampled with two biases and a mask: a good step. */
static void good_step(step_parts *p) {
    memset(p, 0, sizeof *p);
    p->rows[0] = (di_row){1, 0, 0};
    p->rows[1] = (di_row){2, 0, 1};
    p->out[0] = 1;
    p->params[0] = (di_sample_params){.top_p = 1, .repetition_penalty = 1, .n_bias = 2};
    p->biases[0] = (di_logit_bias){383, 1};
    memset(p->masks, 0xFF, sizeof p->masks);
    p->step = (di_step){.rows = p->rows,
                        .n_rows = 2,
                        .out_rows = p->out,
                        .n_out = 1,
                        .params = p->params,
                        .biases = p->biases,
                        .n_biases = 2,
                        .masks = p->masks,
                        .n_masks = 1};
}

static void test_steps(void **state) {
    (void)state;
    step_parts p;
#define REFUSED(change, status, message)                                                           \
    do {                                                                                           \
        good_step(&p);                                                                             \
        change;                                                                                    \
        refused(di_forward(m.context, &p.step, &error), status, message);                          \
    } while (0)
    REFUSED(p.step.n_rows = 0, DI_ERR_LIMIT, "a step of 0 rows, the context allows 1 to 32");
    REFUSED(p.step.n_rows = 33, DI_ERR_LIMIT, "a step of 33 rows, the context allows 1 to 32");
    REFUSED(p.rows[1].slot = 2, DI_ERR_USAGE, "row 1: slot 2, there are 2");
    REFUSED(p.rows[0].slot = -1, DI_ERR_USAGE, "row 0: slot -1, there are 2");
    REFUSED(p.rows[1].token = 384, DI_ERR_USAGE, "row 1: token id 384, the vocabulary has 384");
    REFUSED(p.rows[1].token = -2, DI_ERR_USAGE, "row 1: token id -2, the vocabulary has 384");
    REFUSED(p.rows[1].offset = 2, DI_ERR_USAGE, "row 1: offset 2 does not continue its sequence");
    REFUSED(p.rows[1] = ((di_row){1, 1, 0}), DI_ERR_USAGE,
            "row 1: no page is set for position 0 of slot 1");
    REFUSED(p.step.n_out = 33, DI_ERR_LIMIT, "33 rows ask for logits, the context allows 32");
    REFUSED(p.out[0] = 2, DI_ERR_USAGE, "out_rows[0] = 2: not an ascending row of the step");
    REFUSED(p.biases[1].id = 384, DI_ERR_USAGE, "biases[1]: token id 384, the vocabulary has 384");
    REFUSED(p.biases[0].id = -1, DI_ERR_USAGE, "biases[0]: token id -1, the vocabulary has 384");
    REFUSED(p.step.n_biases = 16385, DI_ERR_LIMIT,
            "a step takes at most 16384 logit biases and 130 masks");
    REFUSED(p.step.n_masks = 131, DI_ERR_LIMIT,
            "a step takes at most 16384 logit biases and 130 masks");
    REFUSED(p.step.n_masks = -1, DI_ERR_LIMIT,
            "a step takes at most 16384 logit biases and 130 masks");
    const char *params = "params[0]: slot, bias range or mask out of range";
    REFUSED(p.params[0].slot = 1, DI_ERR_USAGE, params);
    REFUSED(p.params[0].n_bias = 3, DI_ERR_USAGE, params);
    REFUSED(p.params[0].bias_begin = 1, DI_ERR_USAGE, params);
    REFUSED(p.params[0].bias_begin = -1, DI_ERR_USAGE, params);
    REFUSED(p.params[0].mask = 1, DI_ERR_USAGE, params);
    REFUSED(p.params[0].mask = -2, DI_ERR_USAGE, params);
#undef REFUSED
    const int32_t own[] = {1, 384};
    const di_decode with_own = {.most = 1, .own = own}, without = {.slot = 0};
#define REFUSED(block, most_, own_, status, message)                                               \
    do {                                                                                           \
        di_decode one = block;                                                                     \
        one.most = most_;                                                                          \
        good_step(&p);                                                                             \
        p.step = (di_step){.blocks = &one, .n_blocks = 1, .n_own = own_, .params = p.params};      \
        refused(di_forward(m.context, &p.step, &error), status, message);                          \
    } while (0)
    const char *order = "blocks[0]: those with drafts of their own are the last, and do not reject";
    REFUSED(with_own, 1, 0, DI_ERR_USAGE, order);
    REFUSED(without, 0, 1, DI_ERR_USAGE, order);
    REFUSED(with_own, 2, 1, DI_ERR_USAGE, "drafts[1]: token id 384, the vocabulary has 384");
    REFUSED(with_own, 1, 2, DI_ERR_USAGE, "2 of 1 blocks have drafts of their own");
#undef REFUSED
    assert_int_equal(di_context_length(m.context, 0), 0); /* nothing went in */
    good_step(&p);
    assert_int_equal(di_forward(m.context, &p.step, &error), DI_OK);
    assert_int_equal(di_context_length(m.context, 0), 2);
    di_context_reset(m.context, 0);
}

static void test_drafts(void **state) {
    (void)state;
    step_parts p;
    good_step(&p);
    assert_int_equal(di_forward(m.context, &p.step, &error), DI_OK);
    int32_t slots[2] = {0, 1}, anchors[2] = {1, 1};
    di_draft_step step;
#define REFUSED(change, status, message)                                                           \
    do {                                                                                           \
        good_step(&p);                                                                             \
        slots[0] = 0, slots[1] = 1, anchors[0] = anchors[1] = 1;                                   \
        step = (di_draft_step){slots, 1, anchors, p.params, p.biases, 2, p.masks, 1};              \
        change;                                                                                    \
        refused(di_draft(m.context, &step, &error), status, message);                              \
    } while (0)
    REFUSED(slots[0] = 2, DI_ERR_USAGE, "slots[0] = 2: not a slot, or twice");
    REFUSED((slots[1] = 0, step.n = 2), DI_ERR_USAGE, "slots[1] = 0: not a slot, or twice");
    REFUSED(anchors[0] = 384, DI_ERR_USAGE, "anchors[0]: token id 384, the vocabulary has 384");
    REFUSED(p.biases[0].id = 70000, DI_ERR_USAGE,
            "biases[0]: token id 70000, the vocabulary has 384");
    REFUSED(step.n_biases = 16385, DI_ERR_LIMIT,
            "a step takes at most 16384 logit biases and 130 masks");
    REFUSED(step.n_masks = 131, DI_ERR_LIMIT,
            "a step takes at most 16384 logit biases and 130 masks");
    const char *params = "params[0]: slot, bias range or mask out of range";
    REFUSED(p.params[0].slot = 1, DI_ERR_USAGE, params);
    REFUSED(p.params[0].bias_begin = 1, DI_ERR_USAGE, params);
    REFUSED(p.params[0].mask = 1, DI_ERR_USAGE, params);
#undef REFUSED
    good_step(&p);
    step = (di_draft_step){slots, 1, anchors, p.params, p.biases, 2, p.masks, 1};
    assert_int_equal(di_draft(m.context, &step, &error), DI_OK);
    di_context_reset(m.context, 0);
}

/* ---- Slots ---- */

static void test_ids(void **state) {
    (void)state;
    int32_t ids[9] = {1, 2, 3, 383, 5, 6, 7, 8, 9};
    assert_int_equal(di_context_count(m.context, 1, ids, 9, false, &error), DI_OK);
    ids[3] = 384;
    refused(di_context_count(m.context, 1, ids, 9, false, &error), DI_ERR_USAGE,
            "ids[3]: token id 384, the vocabulary has 384");
    refused(di_context_count(m.context, 2, ids, 1, true, &error), DI_ERR_USAGE,
            "slot 2, there are 2");
    refused(di_context_rewind(m.context, -1, 0, &error), DI_ERR_USAGE, "slot -1, there are 2");
    refused(di_context_cut(m.context, 2, 0, &error), DI_ERR_USAGE, "slot 2, there are 2");
    refused(di_context_resume(m.context, 2, ids, 0, 0, &error), DI_ERR_USAGE,
            "slot 2, there are 2");
    refused(di_context_resume(m.context, 0, ids, 5, 4, &error), DI_ERR_USAGE,
            "resume at 5 with entries up to 4 in a context of 128");
    refused(di_context_resume(m.context, 0, ids, 4, 8, &error), DI_ERR_USAGE,
            "ids[3]: token id 384, the vocabulary has 384");
    ids[3] = -1; /* not known to the host: nothing that could be hashed */
    refused(di_context_resume(m.context, 0, ids, 4, 8, &error), DI_ERR_USAGE,
            "ids[3]: token id -1, the vocabulary has 384");
    refused(di_context_resume(m.context, 0, ids, 3, 3, &error), DI_ERR_USAGE,
            "resume with entries up to 3: no multiple of the ratio 2 of layer 2");
    refused(di_context_resume(m.context, 1, ids, 0, 64, &error), DI_ERR_USAGE,
            "resume with entries up to 64: page 0 of slot 1 is not set");
    assert_int_equal(di_context_resume(m.context, 0, ids, 3, 4, &error), DI_OK);
    assert_int_equal(di_context_length(m.context, 0), 3);
    di_context_reset(m.context, 0);
}

/* What a child that calls it says; it must end by SIGABRT. */
static void aborts(void (*call)(void), const char *message) {
    int pipes[2], status;
    char said[256] = "";
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        dup2(pipes[1], STDERR_FILENO);
        call();
        _exit(0);
    }
    close(pipes[1]);
    for (ssize_t at = 0, n; (n = read(pipes[0], said + at, sizeof said - 1 - (size_t)at)) > 0;) {
        at += n;
        said[at] = '\0';
    }
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    said[strcspn(said, "\n")] = '\0';
    assert_string_equal(said, message);
}

static void reset_absent(void) { di_context_reset(m.context, 2); }
static void save_absent(void) { di_context_save(m.context, -1, NULL); }
static void restore_absent(void) { di_context_restore(m.context, 7, NULL); }
static void copy_absent(void) { di_context_copy_page(m.context, 3, 4); }

/* Functions without a status: a bug of the caller ends the program where it is made. */
static void test_aborts(void **state) {
    (void)state;
    aborts(reset_absent, "di_context_reset: slot 2, there are 2; this is a bug of the caller");
    aborts(save_absent, "di_context_save: slot -1, there are 2; this is a bug of the caller");
    aborts(restore_absent, "di_context_restore: slot 7, there are 2; this is a bug of the caller");
    aborts(copy_absent,
           "di_context_copy_page: page 4, the pool has 4; this is a bug of the caller");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_aborts),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
