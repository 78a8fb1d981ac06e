/* Speculation as the engine lives it: what drafts are there, how many of them the next step
 * verifies, whether new ones are made, and what results teach. The decisions themselves are pure
 * functions (spec_schedule.h, spec_calibrate.h, spec_cost.h).
 *
 * A step verifies what the step before drafted, and drafts for the step behind. Whether drafts pay
 * is decided from survivals that were read: of drafts two steps old with a step in flight, one
 * without. Which of them are verified the device decides, from its own (ops.h, allot).
 */
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

static void *take(size_t n, size_t size, bool *ok) {
    void *memory = calloc(n, size);
    *ok = *ok && memory;
    return memory;
}

di_status core__spec_init(di_core *core, di_error *error) {
    core__spec *spec = &core->spec;
    size_t batch = (size_t)core->options.max_batch;
    bool ok = true;
    const di_spec_floor floor = floor_of(core->config), draft = draft_floor_of(core->config);
    spec->verify = take(1, sizeof *spec->verify, &ok);
    if (ok) di_spec_cost_init(spec->verify, &floor);
    if (ok && core->options.spec == DI_SPEC_OFF) return DI_OK;
    size_t block = (size_t)core->config->dspark_block_size;
    spec->block = (int32_t)block;
    spec->calibration = take(1, sizeof *spec->calibration, &ok);
    spec->draft = take(1, sizeof *spec->draft, &ok);
    spec->survival = take(batch * block, sizeof *spec->survival, &ok);
    spec->limit = take(batch, sizeof *spec->limit, &ok);
    spec->lengths = take(batch, sizeof *spec->lengths, &ok);
    spec->heap = take(batch, sizeof *spec->heap, &ok);
    spec->step_s = take(batch * block + 1, sizeof *spec->step_s, &ok);
    spec->temperatures = take(DI_LAWS * block, sizeof *spec->temperatures, &ok);
    if (!ok) return di_fail(error, DI_ERR_MEMORY, "out of memory: speculation");
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
}

/* ---- Deciding ---- */

/* The blocks of the step, as they will be once they have drafts. Returns their number. */
static int32_t gather(di_core *core, int32_t *n_verifiable) {
    core__spec *spec = &core->spec;
    int32_t n = 0, block = spec->block;
    *n_verifiable = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        const core__sequence *s = core->order[i];
        if (!s->block) continue;
        /* Not from the drafts that this step will verify. */
        int32_t old = s->learned_at[0] + 2 <= (int64_t)core->stats.steps ? 0 : 1;
        memcpy(spec->survival + (int64_t)n * block, s->survival[old],
               (size_t)block * sizeof *spec->survival);
        spec->limit[n++] = di_spec_limit(block, s->max_ids - s->n_ids - s->n_unread);
        *n_verifiable += s->most;
    }
    return n;
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* Drafts that exist cost nothing any more; how many of them to look at. */
static int32_t verify_existing(core__spec *spec, const di_core *core, di_spec_costs *costs,
                               int32_t n) {
    const di_spec_batch batch = {n, spec->block, spec->survival, spec->limit};
    int32_t at = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        if (core->order[i]->block) spec->limit[at++] = core->order[i]->most;
    }
    costs->draft_s = 0;
    return di_spec_choose(&batch, costs, spec->lengths, spec->heap).drafts;
}

/* Prompts in the step are left out: their rows are work that must be done once, whatever is drafted
 * beside them, and not the price of this step's tokens. */
static core__drafting plan_best(di_core *core, int32_t room, int32_t n, int32_t n_verifiable) {
    core__spec *spec = &core->spec;
    const di_spec_batch batch = {n, spec->block, spec->survival, spec->limit};
    int32_t most = smaller(room, n * spec->block), class = core->drafting.context_class;
    di_spec_costs costs = {.step_s = spec->step_s,
                           .max_drafts = most,
                           .draft_s = di_spec_cost_seconds(spec->draft, 0, n),
                           .tokens = n};
    di_spec_cost_fill(spec->verify, class, n, most + 1, spec->step_s);
    di_spec_plan plan = di_spec_choose(&batch, &costs, spec->lengths, spec->heap);
    core__drafting drafting = {.drafts = plan.mode != DI_SPEC_OFF, .context_class = class};
    double excess = costs.draft_s + spec->step_s[most] - spec->step_s[0];
    if (spec->probing && n_verifiable > 0) {
        drafting.n_verified = smaller(n_verifiable, most);
    } else if (n_verifiable > 0) {
        drafting.n_verified = verify_existing(spec, core, &costs, n);
    }
    spec->probing = false;
    if (!drafting.drafts && most > 0 && di_spec_probe_due(&spec->probe, spec->step_s[0], excess)) {
        drafting.drafts = spec->probing = true;
    }
    return drafting;
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

core__drafting core__spec_plan(di_core *core, int32_t room) {
    int32_t n_verifiable;
    if (core->spec.block == 0) return (core__drafting){0};
    int32_t n = gather(core, &n_verifiable);
    core->drafting.context_class = context_class(core);
    /* Prompts that end in the step are drafted for as well: their first block comes next. */
    if (n == 0 || core->options.spec == DI_SPEC_FIXED) {
        return (core__drafting){.n_verified = smaller(n_verifiable, room),
                                .drafts = true,
                                .context_class = core->drafting.context_class};
    }
    return plan_best(core, room, n, n_verifiable);
}

/* ---- Learning ---- */

void core__spec_forget(di_core *core, core__sequence *s) {
    s->drafted = false;
    s->has_confidence = false;
    s->forgot_at = (int64_t)core->stats.steps;
    s->learned_at[0] = s->learned_at[1] = -2;
    for (int32_t k = 0; k < core->spec.block; k++) s->survival[0][k] = s->survival[1][k] = 1;
}

void core__spec_learn(di_core *core, core__sequence *s, const core__step *step, int32_t column) {
    int32_t block = core->spec.block, stride = step->n_drafted;
    if (step->number < s->forgot_at) return;
    for (int32_t k = 0; k < block; k++) s->confidence[k] = step->confidence[k * stride + column];
    s->has_confidence = true;
    memcpy(s->survival[1], s->survival[0], (size_t)block * sizeof *s->survival[0]);
    s->learned_at[1] = s->learned_at[0];
    s->learned_at[0] = step->number;
    di_spec_survivals(core->spec.calibration, s->law, s->confidence, block, s->survival[0]);
}

void core__spec_observe(di_core *core, core__sequence *s, int32_t n_verified, int32_t n_accepted) {
    core->stats.draft_blocks++;
    core->stats.accepted += (uint64_t)n_accepted;
    if (!s->has_confidence) return;
    di_spec_observe(core->spec.calibration, s->law, s->confidence, n_verified, n_accepted);
}

void core__spec_time(di_core *core, const core__step *step) {
    core__spec *spec = &core->spec;
    if (step->n_rows == 0) { /* prompts cost otherwise */
        di_spec_cost_record(spec->verify, (int64_t)step->n_blocks + step->n_verified,
                            step->context_class, step->middle - step->begin);
    }
    if (step->n_drafted > 0) {
        di_spec_cost_record(spec->draft, step->n_drafted, 0, step->end - step->middle);
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
