/* kernelcheck: the selection of entries, whole. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck_scene.h"

static const kc_pair none = {{{0}, {0}}};

/* ---- Long lists ---- */

/* Rounds in which lists are longer than those that CUDA picks from whole (WHOLE_LIST): with
 * candidates to publish, in round 5 beside a list that is short; longer than LONG_LIST, in round
 * 10; and of published blocks, in round 15. Keys are of the release's width and lie as its keys
 * do. */
static bool is_long(const check *c) { return !c->bench && c->round > 0 && c->round % 5 == 0; }

enum { LONG = 33500, MORE = 66500, SHORT = 300, ENTRIES = 64 /* of a page: at ratio 1 */ };

/* Slot 0 has two rows. All weights of the second are zero, and so are its scores: what is picked
 * are the first ones, of which both sides have no doubt. */
enum { TIED_ROW = 1 };

static kc_scene long_scene(check *c) {
    kc_layout l = {.n_slots = 1, .length = {LONG}};
    if (c->round % 15 == 5) l.n_slots = 2, l.length[1] = SHORT;
    if (c->round % 15 == 10) l.n_slots = 2, l.length[0] = MORE, l.length[1] = LONG;
    for (int32_t slot = 0; slot < l.n_slots; slot++) l.n_rows[slot] = l.valid[slot] = 2;
    return kc_scene_of(c, l);
}

/* Makes all keys of a slot zero but those of the last page. Some of these have positive scores and
 * are picked, with the first of thousands of ties: eights of keys that are hits are more than CUDA
 * holds at once (HITS, 4,096), and what is best is among the last ones. */
static void leave_last_page(check *c, const kc_pages *p, int32_t slot, int32_t length) {
    for (int i = 0; i < 2; i++) {
        const di_pages *side = &p->side[i];
        /* The twin's memory is this program's, and both sides have the same table. */
        const int32_t *table = (const int32_t *)(uintptr_t)p->side[0].table.address +
                               (int64_t)slot * side->table_stride;
        for (int32_t page = 0; page < length / ENTRIES; page++) {
            uint64_t at = (uint64_t)table[page] * side->page_bytes + side->key_codes;
            c->dev[i].backend->fill(c->dev[i].backend->stream, di_ptr_at(side->pool, at), 0,
                                    (uint64_t)(ENTRIES * side->di / 2));
        }
    }
}

/* ---- Comparing ---- */

/* Whether a row's list is so long that it has a share of its own in what may differ: of what is in
 * it so many. None where all scores are ties, few where most are. */
static bool has_long_list(const check *c, const kc_scene *s, int32_t t, int32_t listed,
                          int32_t *allowed) {
    bool sparse = c->round % 15 == 10 && t >= s->layout.n_rows[0];
    *allowed = t == TIED_ROW ? 0 : sparse ? 2 : listed / 8;
    return is_long(c) && s->live[t] >= LONG;
}

/* How many of x [n] are not among y [n]: both ascending, with -1 at the end. */
static int32_t count_missing(const int32_t *x, const int32_t *y, int32_t n) {
    int32_t missing = 0;
    for (int32_t i = 0, j = 0; i < n && x[i] >= 0; i++) {
        while (j < n && y[j] >= 0 && y[j] < x[i]) j++;
        missing += j == n || y[j] != x[i];
    }
    return missing;
}

static int32_t count_listed(const int32_t *x, int32_t n) {
    int32_t listed = 0;
    while (listed < n && x[listed] >= 0) listed++;
    return listed;
}

/* A row's list. Where the row's query is rounded another way than the twin's, scores are only
 * close: a few lists may be anything, of all rounds' short ones; a long one is judged by itself. */
static void compare_list(check *c, const char *what, const kc_scene *s, int32_t t,
                         const int32_t *twin, const int32_t *mine, int32_t width) {
    for (int32_t i = 0; i < width; i++) { /* whatever was picked: ascending, -1 at the end */
        int32_t at = mine[i], before = i == 0 ? -1 : mine[i - 1];
        bool fine = at == -1 || (at > before && (i == 0 || before >= 0));
        if (!fine) kc_fail(c, "%s[%d][%d] = %d after %d", what, t, i, at, before);
    }
    int32_t missing = count_missing(twin, mine, width), n = count_listed(twin, width), allowed;
    bool same = memcmp(twin, mine, (size_t)width * 4) == 0;
    if (has_long_list(c, s, t, n, &allowed)) {
        int32_t listed = count_listed(mine, width);
        if (missing > allowed || listed != n || (allowed == 0 && !same))
            kc_fail(c, "%s[%d]: %d of %d are missing, %d there", what, t, missing, n, listed);
        return;
    }
    c->rows++;
    c->tipped += !same;
}

static void compare_lists(check *c, const char *what, kc_pair p, const kc_scene *s, int32_t width) {
    int32_t *x[2];
    if (c->bench || width == 0) return;
    for (int i = 0; i < 2; i++) {
        x[i] = malloc((size_t)(s->rows * width) * 4);
        if (x[i] == NULL) abort();
        device_get(&c->dev[i], p.p[i], x[i], (uint64_t)(s->rows * width) * 4);
    }
    for (int32_t t = 0; t < s->rows; t++)
        if (s->live[t] >= 0) compare_list(c, what, s, t, x[0] + t * width, x[1] + t * width, width);
    free(x[0]);
    free(x[1]);
}

/* Many rows, the last of which by themselves again; the first ones are compared with the twin's. */
static void check_crowd(check *c, const kc_scene *s, const di_index_select_args *few) {
    const di_batch once[2] = {few[0].batch, few[1].batch};
    di_batch crowd[2];
    const int32_t rows = s->rows, times = kc_crowd_batch(c, once, rows, crowd), n = rows * times;
    const int64_t rank = few[0].wq_b.k, width = few[0].weights_proj.k, last = n - rows;
    const di_candidate_mode mode = few[0].candidate_mode;
    const uint64_t each = (uint64_t)few[0].top_k * 4, each_blocks = (uint64_t)few[0].top_blocks * 4;
    kc_pair qr = kc_random_a(c, n * rank, KC_NORMAL, 1),
            u = kc_random_a(c, n * width, KC_NORMAL, 1);
    kc_pair qr1 = kc_at_a(c, qr, last * rank), u1 = kc_at_a(c, u, last * width);
    kc_pair picks = kc_take(c, (uint64_t)n * each), picks1 = kc_take(c, (uint64_t)rows * each);
    kc_pair blocks = none, blocks1 = kc_pair_of(few[0].candidates, few[1].candidates);
    if (mode == DI_CANDIDATES_SOURCE) {
        blocks = kc_take(c, (uint64_t)n * each_blocks);
        blocks1 = kc_take(c, (uint64_t)rows * each_blocks);
    } else if (mode == DI_CANDIDATES_USE) {
        blocks = kc_repeated(c, blocks1, (uint64_t)rows * each_blocks, times);
    }
    di_index_select_args many[2], again[2];
    for (int i = 0; i < 2; i++) {
        many[i] = again[i] = few[i];
        many[i].batch = crowd[i], many[i].qr = qr.p[i], many[i].u = u.p[i];
        many[i].candidates = blocks.p[i], many[i].picks = picks.p[i];
        again[i].qr = qr1.p[i], again[i].u = u1.p[i];
        again[i].candidates = blocks1.p[i], again[i].picks = picks1.p[i];
    }
    KC_RUN_WITH(c, index_select, many[i]);
    KC_RUN_WITH(c, index_select, again[i]);
    compare_lists(c, "picks of many rows", picks, s, few[0].top_k);
    if (mode == DI_CANDIDATES_SOURCE)
        compare_lists(c, "candidates of many rows", blocks, s, few[0].top_blocks);
    for (int32_t t = 0; t < rows; t++) {
        uint64_t one = (uint64_t)t, far = (uint64_t)(last + t);
        if (s->live[t] < 0) continue;
        kc_same(c, "picks of many rows", kc_at(picks1, one * each), kc_at(picks, far * each), each);
        if (mode == DI_CANDIDATES_SOURCE)
            kc_same(c, "candidates of many rows", kc_at(blocks1, one * each_blocks),
                    kc_at(blocks, far * each_blocks), each_blocks);
    }
}

/* ---- The check ---- */

/* What weights of heads are made of. */
static kc_pair random_u(check *c, const kc_scene *s, int32_t width) {
    kc_pair u;
    const int64_t n = (int64_t)s->rows * width;
    float *x = kc_values(c, n, KC_NORMAL, 1, true);
    if (is_long(c)) memset(x + (int64_t)TIED_ROW * width, 0, (size_t)width * 4);
    for (int i = 0; i < 2; i++) u.p[i] = device_put_a(&c->dev[i], x, n);
    free(x);
    return u;
}

/* One call, and what it gives. */
typedef struct selection {
    kc_scene scene;
    kc_pages pages;
    di_index_select_args args[2];
    kc_pair picks, candidates;
} selection;

/* Rounds with many rows: of each candidate mode one whose pages are whole and one whose are not. */
static bool has_crowd(const check *c) {
    return !c->bench && !is_long(c) && (c->round % 6 == 1 || c->round % 6 == 2);
}

/* The sizes of a case; its memory is not there yet. A block's size has nothing to do with how pages
 * lie: rounds 5, 10, 15 and 7 have 8, 5, 6 and 8. */
static di_index_select_args random_shape(check *c) {
    static const int32_t sizes[7] = {8, 6, 2, 5, 1, 8, 4};
    di_index_select_args a = {.n_heads = kc_pick(c, 1, 8, 32), .top_k = kc_pick(c, 1, 60, 512)};
    a.candidate_mode = c->bench ? DI_CANDIDATES_NONE : (di_candidate_mode)(c->round / 3 % 3);
    a.top_blocks = has_crowd(c) ? kc_pick(c, 20, 60, 0) : kc_pick(c, 1, 12, 256);
    /* Nothing is published; no config has layers that would then use it. */
    if (!c->bench && c->round % 16 == 4 && a.candidate_mode != DI_CANDIDATES_USE) a.top_blocks = 0;
    a.block_size = c->bench ? 8 : sizes[c->round % 7];
    a.rope.dims = c->bench ? 64 : kc_pick_step(c, 2, 32, 2, 0);
    if (!is_long(c)) return a;
    a.n_heads = kc_pick(c, 4, 8, 0);
    a.top_k = kc_pick(c, 60, 96, 0), a.top_blocks = kc_pick(c, 40, 60, 0);
    if (c->round % 15 == 10) a.candidate_mode = DI_CANDIDATES_SOURCE;
    if (a.candidate_mode == DI_CANDIDATES_USE) a.top_blocks = LONG / a.block_size + 1;
    return a;
}

static selection random_selection(check *c) {
    static const int32_t ratios[4] = {1, 4, 2, 1};
    bool is_far = is_long(c), whole = is_far || kc_has_whole_pages(c);
    selection x = {.scene = is_far ? long_scene(c) : kc_random_scene(c, 400, 8000)};
    kc_scene *s = &x.scene;
    di_index_select_args a = random_shape(c);
    int32_t rows = s->rows, n_slots = s->layout.n_slots, ratio = is_far ? 1 : ratios[c->round % 4],
            di = whole ? 128 : kc_pick_step(c, 32, 96, 32, 128),
            rank = kc_pick_step(c, 32, 96, 32, 320), width = kc_pick(c, 32, 160, 5120),
            tokens = c->bench ? 8100
                     : is_far ? s->layout.length[0] + 2
                              : 450;
    x.pages = kc_random_pages(c, n_slots, tokens, ratio, 32, di, whole);
    if (is_far && n_slots == 2 && s->layout.length[1] == LONG)
        leave_last_page(c, &x.pages, 1, LONG);
    kc_pair qr = kc_random_a(c, (int64_t)rows * rank, KC_NORMAL, 1),
            freq = kc_frequencies(c, a.rope.dims), u = random_u(c, s, width);
    kc_matrix wq_b = kc_weights(c, DI_F8_E4M3, a.n_heads * di, rank, 0.1),
              proj = kc_weights(c, DI_BF16, a.n_heads, width, 0.1);
    x.picks = kc_take(c, (uint64_t)(rows * a.top_k) * 4);
    x.candidates = none;
    if (a.candidate_mode == DI_CANDIDATES_SOURCE)
        x.candidates = kc_take(c, (uint64_t)(rows * a.top_blocks) * 4);
    else if (a.candidate_mode == DI_CANDIDATES_USE)
        x.candidates = kc_random_picks(c, s, ratio * a.block_size, a.top_blocks);
    for (int i = 0; i < 2; i++) {
        di_index_select_args *to = &x.args[i];
        *to = a;
        to->batch = s->batch.b[i], to->rope.freq = freq.p[i], to->qr = qr.p[i], to->u = u.p[i];
        to->wq_b = wq_b.m[i], to->weights_proj = proj.m[i], to->pages = x.pages.side[i];
        to->candidates = x.candidates.p[i], to->picks = x.picks.p[i];
    }
    kc_work(c, 8000.0 / ratio * di * 0.53 + (double)a.n_heads * di * rank,
            2.0 * 8000 / ratio * a.n_heads * di);
    return x;
}

/* The first rows by themselves: the same bits. In round 10 without candidates, which picks do not
 * hang on. */
static void check_some(check *c, selection *x) {
    const kc_scene *s = &x->scene;
    int32_t some = kc_pick(c, 1, s->rows, 0);
    bool source = x->args[0].candidate_mode == DI_CANDIDATES_SOURCE;
    bool publishes = source && !(is_long(c) && c->round % 15 == 10);
    const uint64_t row = (uint64_t)x->args[0].top_k * 4,
                   blocks = (uint64_t)x->args[0].top_blocks * 4;
    kc_pair picks = kc_take(c, (uint64_t)some * row), candidates = x->candidates;
    if (publishes) candidates = kc_take(c, (uint64_t)some * blocks);
    for (int i = 0; i < 2; i++) {
        x->args[i].batch.n_rows = some;
        if (source && !publishes) x->args[i].candidate_mode = DI_CANDIDATES_NONE;
        x->args[i].candidates = candidates.p[i], x->args[i].picks = picks.p[i];
    }
    KC_RUN_WITH(c, index_select, x->args[i]);
    for (int32_t t = 0; t < some; t++) {
        uint64_t one = (uint64_t)t;
        if (s->live[t] < 0) continue;
        kc_same(c, "picks", kc_at(picks, one * row), kc_at(x->picks, one * row), row);
        if (publishes)
            kc_same(c, "candidates", kc_at(candidates, one * blocks),
                    kc_at(x->candidates, one * blocks), blocks);
    }
}

void kc_check_index_select(check *c) {
    selection x = random_selection(c);
    const di_index_select_args *a = x.args;
    KC_RUN_WITH(c, index_select, x.args[i]);
    if (c->bench) return;
    compare_lists(c, "picks", x.picks, &x.scene, a->top_k);
    if (a->candidate_mode == DI_CANDIDATES_SOURCE)
        compare_lists(c, "candidates", x.candidates, &x.scene, a->top_blocks);
    if (has_crowd(c)) check_crowd(c, &x.scene, x.args);
    check_some(c, &x);
}
