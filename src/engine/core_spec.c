/* Speculation as the engine lives it: for whom the next step drafts, how many of the drafts it
 * verifies, and what results teach. The decisions themselves are pure functions (spec_schedule.h,
 * spec_calibrate.h, spec_cost.h).
 *
 * A step drafts for those that decode and verifies the drafts at once. Whether that pays is decided
 * before, from survivals that were read: of drafts of earlier steps, two steps old with a step in
 * flight. Which of the new ones are verified the device decides, from their own (ops.h, allot).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"

/* What the machine can do is not known at start; real steps soon say it. Only the shape counts:
 * from where on more rows cost more. */
static di_spec_floor floor_of(const di_config *c) {
    const double bandwidth = 2e10, peak = 2e11, overhead = 2e-5;
    double d = c->hidden_size, layers = c->num_hidden_layers, inner = c->moe_intermediate_size;
    double heads = c->num_attention_heads, head = c->head_dim, q = c->q_lora_rank;
    double attention = d * q + q * heads * head + d * head + heads * head * c->o_lora_rank +
                       (double)c->o_groups * c->o_lora_rank * d;
    double expert = 3 * d * inner, picks = c->num_experts_per_tok;
    double dense = layers * (attention + expert) + (double)c->vocab_size * d;
    return (di_spec_floor){.dense_bytes = dense,
                           .expert_bytes = layers * c->n_routed_experts * expert * 0.53,
                           .expert_used = picks / c->n_routed_experts,
                           .row_bytes = layers * d * c->hc_mult * 8,
                           .context_bytes = (double)di_config_page_bytes(c) / DI_PAGE_TOKENS,
                           .row_flops = 2 * (dense + layers * picks * expert),
                           .context_flops = 2 * layers * c->index_n_heads * c->index_head_dim,
                           .bandwidth = bandwidth,
                           .peak = peak,
                           .overhead = overhead};
}

/* The draft pass: its stages, and the head, once for `block` rows a sequence. */
static di_spec_floor draft_floor_of(const di_config *c) {
    di_spec_floor f = floor_of(c);
    double share = (double)c->num_nextn_predict_layers / c->num_hidden_layers;
    f.expert_bytes *= share;
    f.dense_bytes *= share;
    f.row_bytes *= share * c->dspark_block_size;
    f.row_flops *= share * c->dspark_block_size;
    f.context_bytes = f.context_flops = 0;
    return f;
}

di_status core__spec_init(di_core *core, di_error *error) {
    core__spec *spec = &core->spec;
    size_t batch = (size_t)core->options.max_batch;
    bool ok = true;
    const di_spec_floor floor = floor_of(core->config), draft = draft_floor_of(core->config);
    spec->verify = core__take(1, sizeof *spec->verify, &ok);
    if (ok) di_spec_cost_init(spec->verify, &floor);
    if (ok && core->options.spec == DI_SPEC_OFF) return DI_OK;
    size_t block = (size_t)core->config->dspark_block_size;
    spec->block = (int32_t)block;
    spec->calibration = core__take(1, sizeof *spec->calibration, &ok);
    spec->draft = core__take(1, sizeof *spec->draft, &ok);
    spec->survival = core__take(batch * block, sizeof *spec->survival, &ok);
    spec->limit = core__take(batch, sizeof *spec->limit, &ok);
    spec->lengths = core__take(batch, sizeof *spec->lengths, &ok);
    spec->heap = core__take(batch, sizeof *spec->heap, &ok);
    spec->step_s = core__take(batch * block + 1, sizeof *spec->step_s, &ok);
    spec->temperatures = core__take(DI_LAWS * block, sizeof *spec->temperatures, &ok);
    spec->confidence = core__take(block, sizeof *spec->confidence, &ok);
    spec->now = core__take(block, sizeof *spec->now, &ok);
    spec->mean = core__take(DI_LAWS * block, sizeof *spec->mean, &ok);
    spec->mean_square = core__take(DI_LAWS * block, sizeof *spec->mean_square, &ok);
    if (!ok) return di_fail(error, DI_ERR_MEMORY, "out of memory: speculation");
    for (size_t i = 0; i < DI_LAWS * block; i++) spec->mean[i] = spec->mean_square[i] = 1;
    di_spec_calibrate_init(spec->calibration);
    di_spec_cost_init(spec->draft, &draft);
    return DI_OK;
}

void core__spec_deinit(core__spec *spec) {
    free(spec->calibration);
    free(spec->verify);
    free(spec->draft);
    free(spec->survival);
    free(spec->limit);
    free(spec->lengths);
    free(spec->heap);
    free(spec->step_s);
    free(spec->temperatures);
    free(spec->confidence);
    free(spec->now);
    free(spec->mean);
    free(spec->mean_square);
}

/* ---- Deciding ---- */

/* The blocks that can have drafts, as far as their survivals go. Returns how many. */
static int32_t gather(di_core *core) {
    core__spec *spec = &core->spec;
    int32_t n = 0, block = spec->block;
    for (int32_t i = 0; i < core->n_order; i++) {
        const core__sequence *s = core->order[i];
        if (s->most == 0) continue;
        memcpy(spec->survival + (int64_t)n * block, s->survival,
               (size_t)block * sizeof *spec->survival);
        spec->limit[n++] = s->most;
    }
    return n;
}

/* Drafts that n sequences could have if there were rows for all. */
static int32_t wanted_drafts(const core__spec *spec, int32_t n) {
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += spec->limit[i];
    return sum;
}

/* Tokens that all drafts of n sequences would give, as far as is known. */
static double expected(const core__spec *spec, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < spec->limit[i]; k++) sum += spec->survival[i * spec->block + k];
    }
    return sum;
}

/* Whether n sequences' drafts would pay if they cost half as much as is estimated: what is far from
 * all measurements is a guess. */
static bool may_pay(const di_core *core, int32_t n_blocks, int32_t n, int32_t most) {
    const core__spec *spec = &core->spec;
    const di_spec_cost *verify = spec->verify;
    double plain = di_spec_cost_seconds(verify, core->context_class, n_blocks);
    double all = di_spec_cost_seconds(verify, core->context_class, (int64_t)n_blocks + most);
    double excess = all - plain + di_spec_cost_seconds(spec->draft, 0, n);
    return expected(spec, n) * plain > 0.5 * excess * n_blocks;
}

/* What was never measured is tried: with drafts first, unless they promise so little that they
 * cannot pay. And while drafts pay, a step without them now and then keeps what they are compared
 * with up to date. *n_verified: what the step does then. */
static bool explores(di_core *core, int32_t n_blocks, int32_t n, int32_t most,
                     int32_t *n_verified) {
    enum { LOOK_EVERY = 64 };
    core__spec *spec = &core->spec;
    bool measured = di_spec_cost_known(spec->verify, (int64_t)n_blocks + most) &&
                    di_spec_cost_known(spec->draft, n);
    bool drafts_known = measured || !may_pay(core, n_blocks, n, most);
    bool plain_known = di_spec_cost_known(spec->verify, n_blocks);
    *n_verified = drafts_known ? 0 : most;
    if (!drafts_known || !plain_known) return true;
    return spec->since_plain++ >= LOOK_EVERY;
}

/* The step's seconds by drafts, beside rows of prompts. These are work to be done once, so only the
 * differences count. `spare` rows are left over; beyond them a draft takes a row from a prompt, and
 * costs what a row of such steps does. */
static void price_beside(di_core *core, int32_t n_blocks, int32_t most, int64_t prompt_rows,
                         int64_t spare) {
    core__spec *spec = &core->spec;
    double row_s = spec->mixed_row_s;
    di_spec_cost_fill(spec->verify, core->context_class, n_blocks + prompt_rows, most + 1,
                      spec->step_s);
    if (!(row_s > 0)) return;
    for (int32_t k = (int32_t)core__smaller(spare, most) + 1; k <= most; k++)
        spec->step_s[k] = spec->step_s[k - 1] + row_s;
}

/* Beside prompts drafts are made where they bring tokens cheaper than steps without prompts do. */
static int32_t plan_best(di_core *core, int32_t n_blocks, int32_t n, int32_t most,
                         int64_t prompt_rows) {
    core__spec *spec = &core->spec;
    const di_spec_batch batch = {n, spec->block, spec->survival, spec->limit};
    di_spec_costs costs = {.step_s = spec->step_s,
                           .max_drafts = most,
                           .draft_s = di_spec_cost_seconds(spec->draft, 0, n),
                           .tokens = n_blocks};
    di_spec_cost_fill(spec->verify, core->context_class, n_blocks, most + 1, spec->step_s);
    di_spec_plan plan = di_spec_choose(&batch, &costs, spec->lengths, spec->heap);
    if (plan.mode == DI_SPEC_OFF) {
        double excess = costs.draft_s + spec->step_s[most] - spec->step_s[0];
        /* What ends soon has few drafts, and so little to teach. */
        if (2 * wanted_drafts(spec, n) < n * spec->block) return 0;
        return di_spec_probe_due(&spec->probe, spec->step_s[0], excess) ? most : 0;
    }
    if (prompt_rows > 0) {
        int64_t left = core->options.max_rows - n_blocks;
        costs.rate = plan.rate;
        prompt_rows = core__smaller(prompt_rows, left);
        price_beside(core, n_blocks, most, prompt_rows, left - prompt_rows);
        plan = di_spec_choose(&batch, &costs, spec->lengths, spec->heap);
    }
    return plan.drafts;
}

/* Mean context of those that decode: what the cost of a step also hangs on. */
static int32_t context_class(const di_core *core) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        if (!core->order[i]->block) continue;
        sum += (double)core->order[i]->n_done;
        n++;
    }
    return di_spec_cost_class(n ? sum / n : 0);
}

int32_t core__spec_plan(di_core *core, int32_t n_blocks, int32_t room, int64_t prompt_rows) {
    int32_t wanted = 0;
    core->context_class = context_class(core);
    for (int32_t i = 0; i < core->n_order; i++) wanted += core->order[i]->most;
    int32_t most = (int32_t)core__smaller(wanted, room);
    if (most == 0 || core->options.spec == DI_SPEC_FIXED) return most;
    int32_t n = gather(core), n_verified;
    /* A step with prompts is no measurement of its size. */
    if (prompt_rows > 0 || !explores(core, n_blocks, n, most, &n_verified))
        n_verified = plan_best(core, n_blocks, n, most, prompt_rows);
    if (n_verified == 0) core->spec.since_plain = 0;
    return n_verified;
}

/* ---- Learning ---- */

/* A standard deviation above the mean: where drafts differ from answer to answer a new one is looked
 * at, where all are poor it is not. */
void core__spec_forget(di_core *core, core__sequence *s) {
    const core__spec *spec = &core->spec;
    double before = 1;
    for (int32_t k = 0; k < spec->block; k++) {
        double mean = spec->mean[(int32_t)s->law * spec->block + k];
        double square = spec->mean_square[(int32_t)s->law * spec->block + k];
        before = fmin(before, mean + sqrt(fmax(0, square - mean * mean)));
        s->survival[k] = before;
    }
    s->survival_age = 0;
}

/* What a sequence's drafts promise moves with every block that it has: blocks differ from each other
 * more than answers do, so one bad block is not the end of it. After steps without drafts it moves
 * further, as far as that many blocks would have; the first block counts as much as what was
 * assumed. */
static void move_survival(core__sequence *s, const double *now, int32_t block) {
    const double keep = 2.0 / 3;
    double kept = s->survival_age == 0 ? 0.5 : pow(keep, s->survival_age);
    for (int32_t k = 0; k < block; k++)
        s->survival[k] = kept * s->survival[k] + (1 - kept) * now[k];
    s->survival_age = 1;
}

/* One block's survivals go into the running means of its law. */
static void average(core__spec *spec, di_spec_law law, const double *survival) {
    const double rate = 1.0 / 16;
    double *mean = spec->mean + (int32_t)law * spec->block;
    double *square = spec->mean_square + (int32_t)law * spec->block;
    for (int32_t k = 0; k < spec->block; k++) {
        mean[k] += rate * (survival[k] - mean[k]);
        square[k] += rate * (survival[k] * survival[k] - square[k]);
    }
}

void core__spec_learn(di_core *core, core__sequence *s, const core__step *step, int32_t column,
                      int32_t n_verified, int32_t n_accepted) {
    core__spec *spec = &core->spec;
    int32_t block = spec->block;
    for (int32_t k = 0; k < block; k++) {
        spec->confidence[k] = step->confidence[k * step->n_drafted + column];
    }
    core->stats.draft_blocks += n_verified > 0;
    core->stats.accepted += (uint64_t)n_accepted;
    di_spec_survivals(spec->calibration, s->law, spec->confidence, block, spec->now);
    move_survival(s, spec->now, block);
    average(spec, s->law, spec->now);
    di_spec_observe(spec->calibration, s->law, spec->confidence, n_verified, n_accepted);
}

void core__spec_pass(core__sequence *s) {
    if (s->survival_age > 0) s->survival_age++;
}

void core__spec_time(di_core *core, const core__step *step) {
    core__spec *spec = &core->spec;
    int64_t rows = (int64_t)step->n_blocks + step->n_verified;
    double seconds = step->end - step->middle;
    if (step->n_rows == 0) {
        di_spec_cost_record(spec->verify, rows, step->context_class, seconds);
    } else if (seconds > 0) {
        double row_s = seconds / (double)(rows + step->n_rows), before = spec->mixed_row_s;
        spec->mixed_row_s = before > 0 ? before + (row_s - before) / 8 : row_s;
    }
    if (step->n_drafted > 0) {
        di_spec_cost_record(spec->draft, step->n_drafted, 0, step->middle - step->ready);
    }
}

double core__spec_block_seconds(const di_core *core, const core__step *step) {
    const core__spec *spec = &core->spec;
    int64_t rows = (int64_t)step->n_blocks + step->n_verified, n = step->n_blocks;
    int64_t fewer = n > 0 ? rows * (n - 1) / n : 0;
    if (n == 0) return 0;
    double seconds = di_spec_cost_seconds(spec->verify, step->context_class, rows);
    if (fewer > 0) seconds -= di_spec_cost_seconds(spec->verify, step->context_class, fewer);
    if (step->n_drafted > 0) {
        seconds += di_spec_cost_seconds(spec->draft, 0, step->n_drafted) / step->n_drafted;
    }
    return seconds;
}

const float *core__spec_temperatures(di_core *core) {
    core__spec *spec = &core->spec;
    for (int32_t law = 0; law < DI_LAWS; law++) {
        for (int32_t k = 0; k < spec->block; k++) {
            spec->temperatures[law * spec->block + k] =
                (float)spec->calibration->positions[law][k].temperature;
        }
    }
    return spec->temperatures;
}
