/* Following an answer: the readings after what was taken, and a short history for rollback. */
#include <stdlib.h>
#include <string.h>

#include "grammar/call_names.h"
#include "grammar/grammar_internal.h"
#include "grammar/vocabulary_internal.h"

enum { COMPACT_FRAMES = 4096 };

/* The place before an advance. */
typedef struct snapshot {
    reading_list at;
    int32_t n_frames;
    call_place names;
    bool waiting, ended;
} snapshot;

struct di_grammar_matcher {
    di_grammar *g;
    reader r;
    reading_list at, next; /* next: work of one advance */
    call_names names;
    int32_t after_id;
    bool waiting, ended;
    snapshot history[DI_GRAMMAR_ROLLBACK]; /* a ring; the newest at (newest - 1) */
    int32_t n_history, newest;
    int32_t compact_at;
};

/* ---- Life ---- */

di_grammar_matcher *di_grammar_matcher_create(di_grammar *g, int32_t after_id) {
    di_grammar_matcher *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->g = di_grammar_acquire(g);
    m->r.s = &g->s;
    m->after_id = after_id;
    m->waiting = after_id >= 0;
    m->compact_at = COMPACT_FRAMES;
    m->names = (call_names)CALL_NAMES_EMPTY;
    pthread_mutex_lock(&g->lock);
    int32_t start = states__start(&g->s, 0);
    bool ok = start > STATE_DEAD && readings__push(&m->at, (reading){start, STACK_EMPTY});
    g->s.status = DI_OK; /* a failure is of this matcher alone */
    pthread_mutex_unlock(&g->lock);
    if (!ok) {
        di_grammar_matcher_destroy(m);
        return NULL;
    }
    return m;
}

void di_grammar_matcher_destroy(di_grammar_matcher *m) {
    if (!m) return;
    for (int i = 0; i < DI_GRAMMAR_ROLLBACK; i++) free(m->history[i].at.items);
    free(m->r.frames);
    free(m->at.items);
    free(m->next.items);
    di_buffer_free(&m->names.used);
    di_grammar_release(m->g);
    free(m);
}

static bool copy_list(reading_list *to, const reading_list *from) {
    to->n = 0;
    for (int32_t i = 0; i < from->n; i++) {
        if (!readings__push(to, from->items[i])) return false;
    }
    return true;
}

di_grammar_matcher *di_grammar_matcher_fork(const di_grammar_matcher *m) {
    di_grammar_matcher *copy = calloc(1, sizeof *copy);
    if (!copy) return NULL;
    copy->g = di_grammar_acquire(m->g);
    copy->r.s = m->r.s;
    copy->r.frames = malloc(((size_t)m->r.n_frames + 1) * sizeof *copy->r.frames);
    copy->names.at = m->names.at;
    di_buffer_append(&copy->names.used, m->names.used.data, m->names.at.size);
    if (!copy->r.frames || !copy_list(&copy->at, &m->at) || copy->names.used.failed) {
        di_grammar_matcher_destroy(copy);
        return NULL;
    }
    if (m->r.n_frames) {
        memcpy(copy->r.frames, m->r.frames, (size_t)m->r.n_frames * sizeof *m->r.frames);
    }
    copy->r.n_frames = m->r.n_frames;
    copy->r.capacity = m->r.n_frames + 1;
    copy->after_id = m->after_id;
    copy->waiting = m->waiting;
    copy->ended = m->ended;
    copy->compact_at = m->compact_at;
    return copy;
}

/* ---- Frames that nobody needs any more ---- */

static void mark(const reader *r, const reading_list *list, int32_t *moved) {
    for (int32_t i = 0; i < list->n; i++) {
        for (int32_t f = list->items[i].stack; f != STACK_EMPTY && moved[f] < 0;
             f = r->frames[f].parent) {
            moved[f] = 0;
        }
    }
}

static void rename_stacks(reading_list *list, const int32_t *moved) {
    for (int32_t i = 0; i < list->n; i++) {
        int32_t *stack = &list->items[i].stack;
        if (*stack != STACK_EMPTY) *stack = moved[*stack];
    }
}

/* Moves the frames in use together, in order, so that cutting back still works. Without memory for
 * it the pool just grows on. */
static void compact(di_grammar_matcher *m) {
    reader *r = &m->r;
    int32_t *moved = malloc(((size_t)r->n_frames + 1) * sizeof *moved);
    if (!moved) return;
    memset(moved, 0xff, ((size_t)r->n_frames + 1) * sizeof *moved);
    mark(r, &m->at, moved);
    for (int32_t k = 1; k <= m->n_history; k++) {
        int32_t slot = (m->newest - k + 2 * DI_GRAMMAR_ROLLBACK) % DI_GRAMMAR_ROLLBACK;
        mark(r, &m->history[slot].at, moved);
    }
    /* Cutting back to old frame i keeps the frames moved from below it. */
    int32_t n = 0;
    for (int32_t k = 1; k <= m->n_history; k++) {
        int32_t slot = (m->newest - k + 2 * DI_GRAMMAR_ROLLBACK) % DI_GRAMMAR_ROLLBACK;
        int32_t below = 0;
        for (int32_t i = 0; i < m->history[slot].n_frames; i++) below += moved[i] == 0;
        m->history[slot].n_frames = below;
    }
    for (int32_t i = 0; i < r->n_frames; i++) {
        if (moved[i] < 0) continue;
        moved[i] = n;
        r->frames[n] = r->frames[i];
        if (r->frames[n].parent != STACK_EMPTY) {
            r->frames[n].parent = moved[r->frames[n].parent];
        }
        n++;
    }
    rename_stacks(&m->at, moved);
    for (int32_t k = 1; k <= m->n_history; k++) {
        int32_t slot = (m->newest - k + 2 * DI_GRAMMAR_ROLLBACK) % DI_GRAMMAR_ROLLBACK;
        rename_stacks(&m->history[slot].at, moved);
    }
    r->n_frames = n;
    m->compact_at = n * 2 > COMPACT_FRAMES ? n * 2 : COMPACT_FRAMES;
    free(moved);
}

/* ---- Advancing ---- */

static void enter(di_grammar_matcher *m) { pthread_mutex_lock(&m->g->lock); }

/* What failed while states were made is this matcher's failure, and nobody else's: others may go on
 * among the states that there are. */
static void leave(di_grammar_matcher *m) {
    if (m->g->s.status != DI_OK && m->r.status == DI_OK) m->r.status = m->g->s.status;
    m->g->s.status = DI_OK;
    pthread_mutex_unlock(&m->g->lock);
}

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory while following a grammar");
}

static di_status reader_failed(reader *r, di_error *error) {
    di_status status = r->status;
    r->status = DI_OK; /* another way may fit */
    if (status == DI_ERR_LIMIT) {
        return di_fail(error, DI_ERR_LIMIT,
                       "the grammar allows more than %d readings of the text at once, or needs "
                       "more than %d MiB of states",
                       READINGS_MAX, STATES_MAX_BYTES >> 20);
    }
    return no_memory(error);
}

static bool follow_names(di_grammar_matcher *m, int symbol) {
    if (symbol >= 256) {
        call_names__marker(&m->names);
    } else {
        call_names__take(&m->names, symbol);
    }
    if (!m->names.used.failed) return true;
    m->names.used.failed = false;
    m->r.status = DI_ERR_MEMORY;
    return false;
}

/* One symbol for all readings: m->at becomes those after it; false when there are none, and then it is
 * unchanged. */
static bool step_all(di_grammar_matcher *m, int symbol) {
    if (m->g->has_calls && call_names__forbids(&m->names, symbol)) return false;
    m->next.n = 0;
    for (int32_t i = 0; i < m->at.n && m->r.status == DI_OK; i++) {
        readings__step(&m->r, m->at.items[i], symbol, &m->next, 0);
    }
    if (m->r.status != DI_OK || m->next.n == 0) return false;
    reading_list swap = m->at;
    m->at = m->next;
    m->next = swap;
    return !m->g->has_calls || follow_names(m, symbol);
}

/* The length of a marker that stands at bytes[0..n) and may come now, taken; 0 when there is none. */
static size_t take_spelled_marker(di_grammar_matcher *m, const char *bytes, size_t n) {
    const program *p = &m->g->p;
    for (int32_t k = 0; k < p->n_markers; k++) {
        size_t length = strlen(p->markers[k]);
        if (n >= length && memcmp(bytes, p->markers[k], length) == 0 && step_all(m, 256 + k)) {
            return length;
        }
    }
    return 0;
}

/* Takes bytes as far as they go; returns how many. */
static size_t take_bytes(di_grammar_matcher *m, const char *bytes, size_t n, bool spelled) {
    size_t i = 0;
    while (i < n && m->r.status == DI_OK) {
        size_t length = spelled ? take_spelled_marker(m, bytes + i, n - i) : 0;
        if (length == 0) length = step_all(m, (unsigned char)bytes[i]);
        if (length == 0) break;
        i += length;
    }
    return i;
}

static bool may_end(const di_grammar_matcher *m) {
    for (int32_t i = 0; i < m->at.n; i++) {
        if (readings__may_end(&m->r, m->at.items[i])) return true;
    }
    return false;
}

/* Saves the place in the slot behind the newest; it counts once the advance has succeeded. */
static bool save(di_grammar_matcher *m) {
    snapshot *s = &m->history[m->newest];
    s->n_frames = m->r.n_frames;
    s->names = m->names.at;
    s->waiting = m->waiting;
    s->ended = m->ended;
    return copy_list(&s->at, &m->at);
}

static void restore(di_grammar_matcher *m, snapshot *s) {
    reading_list swap = m->at;
    m->at = s->at;
    s->at = swap;
    m->r.n_frames = s->n_frames;
    m->names.at = s->names;
    m->waiting = s->waiting;
    m->ended = s->ended;
}

static void keep(di_grammar_matcher *m) {
    m->newest = (m->newest + 1) % DI_GRAMMAR_ROLLBACK;
    if (m->n_history < DI_GRAMMAR_ROLLBACK) m->n_history++;
    if (m->r.n_frames > m->compact_at) compact(m);
}

static bool take_ordinary(di_grammar_matcher *m, int32_t id) {
    size_t size;
    const char *bytes = vocabulary__bytes(m->g->vocabulary, id, &size);
    if (bytes) return take_bytes(m, bytes, size, false) == size;
    for (int32_t k = 0; k < m->g->p.n_markers; k++) {
        if (m->g->marker_ids[k] == id) return step_all(m, 256 + k);
    }
    return false;
}

/* False when the token may not come; the place is then to be restored. */
static bool take_token(di_grammar_matcher *m, int32_t id) {
    const di_vocabulary *v = m->g->vocabulary;
    if (id < 0 || id >= v->n_ids || m->ended) return false;
    if (m->waiting) {
        size_t size;
        m->waiting = id != m->after_id;
        return !m->waiting || vocabulary__bytes(v, id, &size) != NULL;
    }
    if (vocabulary__is_end(v, id)) return m->ended = may_end(m);
    return take_ordinary(m, id);
}

di_status di_grammar_matcher_advance(di_grammar_matcher *m, int32_t id, di_error *error) {
    if (!m->g->vocabulary) {
        return di_fail(error, DI_ERR_USAGE, "the grammar was compiled without a vocabulary");
    }
    if (!save(m)) return no_memory(error);
    enter(m);
    bool taken = take_token(m, id);
    leave(m);
    if (taken) {
        keep(m);
        return DI_OK;
    }
    restore(m, &m->history[m->newest]);
    if (m->r.status != DI_OK) return reader_failed(&m->r, error);
    return di_fail(error, DI_ERR_INVALID, "the grammar does not allow token %d here", id);
}

di_status di_grammar_matcher_advance_bytes(di_grammar_matcher *m, const char *bytes, size_t n,
                                           size_t *n_taken, di_error *error) {
    *n_taken = 0;
    if (m->waiting || m->ended) {
        return di_fail(error, DI_ERR_USAGE, "the grammar takes no text before %s",
                       m->waiting ? "it begins" : "an end is taken back");
    }
    if (!save(m)) return no_memory(error);
    enter(m);
    *n_taken = take_bytes(m, bytes, n, true);
    leave(m);
    if (*n_taken == n) {
        keep(m);
        return DI_OK;
    }
    restore(m, &m->history[m->newest]);
    if (m->r.status != DI_OK) return reader_failed(&m->r, error);
    return di_fail(error, DI_ERR_INVALID, "the grammar does not allow byte %zu", *n_taken);
}

bool di_grammar_matcher_rollback(di_grammar_matcher *m, size_t n) {
    if (n > (size_t)m->n_history) return false;
    if (n == 0) return true;
    int32_t slot = (m->newest - (int32_t)n + DI_GRAMMAR_ROLLBACK) % DI_GRAMMAR_ROLLBACK;
    restore(m, &m->history[slot]);
    m->newest = slot;
    m->n_history -= (int32_t)n;
    return true;
}

/* ---- Asking ---- */

bool di_grammar_matcher_waiting(const di_grammar_matcher *m) { return m->waiting; }

bool di_grammar_matcher_ended(const di_grammar_matcher *m) { return m->ended; }

bool di_grammar_matcher_accepting(di_grammar_matcher *m) {
    if (m->waiting || m->ended) return false;
    enter(m);
    bool result = may_end(m);
    leave(m);
    return result;
}

/* The one symbol that may come, -1 when there is none, -2 when there are several. */
static int only_symbol(di_grammar_matcher *m) {
    uint64_t symbols[5] = {0};
    for (int32_t i = 0; i < m->at.n; i++) readings__symbols(&m->r, m->at.items[i], symbols);
    int only = -1;
    for (int k = 0; k < 5; k++) {
        if (!symbols[k]) continue;
        if (only >= 0 || (symbols[k] & (symbols[k] - 1))) return -2;
        only = k * 64 + __builtin_ctzll(symbols[k]);
    }
    return only;
}

bool di_grammar_matcher_complete(di_grammar_matcher *m) {
    if (m->waiting || m->ended) return m->ended;
    enter(m);
    bool result = only_symbol(m) == -1;
    leave(m);
    return result;
}

static void allow(uint32_t *words, int32_t id) { words[id / 32] |= UINT32_C(1) << (id % 32); }

di_status di_grammar_matcher_mask(di_grammar_matcher *m, uint32_t *words, di_error *error) {
    const di_vocabulary *v = m->g->vocabulary;
    if (!v) return di_fail(error, DI_ERR_USAGE, "the grammar was compiled without a vocabulary");
    if (m->ended) return di_fail(error, DI_ERR_USAGE, "nothing comes after an end token");
    if (m->waiting) {
        memcpy(words, v->ordinary, v->n_words * sizeof *words);
        if (m->after_id < v->n_ids) allow(words, m->after_id);
        return DI_OK;
    }
    memset(words, 0, v->n_words * sizeof *words);
    enter(m);
    for (int32_t i = 0; i < m->at.n && m->r.status == DI_OK; i++) {
        mask__add(&m->g->masks, &m->r, m->at.items[i], m->g->marker_ids, words);
    }
    if (m->g->has_calls) call_names__mask(&m->names, v, words);
    if (may_end(m)) {
        for (size_t i = 0; i < v->n_end; i++) allow(words, v->end_ids[i]);
    }
    leave(m);
    return m->r.status == DI_OK ? DI_OK : reader_failed(&m->r, error);
}

di_status di_grammar_matcher_masks(di_grammar_matcher *m, const int32_t *ids, size_t n,
                                   uint32_t *words, size_t stride, size_t *n_rows,
                                   di_error *error) {
    size_t taken = 0;
    di_error refused; /* a draft that is not allowed is no failure */
    di_status status;
    *n_rows = 0;
    if (n > DI_GRAMMAR_ROLLBACK) {
        return di_fail(error, DI_ERR_USAGE, "%zu drafts; at most %d can be taken back", n,
                       DI_GRAMMAR_ROLLBACK);
    }
    for (;;) {
        status = di_grammar_matcher_mask(m, words + *n_rows * stride, error);
        if (status != DI_OK) break;
        ++*n_rows;
        if (taken == n) break;
        status = di_grammar_matcher_advance(m, ids[taken], &refused);
        if (status != DI_OK) break;
        taken++;
        if (m->ended) break;
    }
    if (status == DI_ERR_INVALID) status = DI_OK;
    if (status != DI_OK && *n_rows > taken) *error = refused;
    di_grammar_matcher_rollback(m, taken);
    return status;
}

/* ---- What must come ---- */

/* Takes forced symbols and gives them: bytes to `out`, until there is a choice, the limit, or a
 * marker, whose number comes back (-1: none; it is not taken). The caller restores the place. */
static int take_forced(di_grammar_matcher *m, size_t max_bytes, di_buffer *out) {
    for (size_t i = 0; i < max_bytes && !may_end(m); i++) {
        int symbol = only_symbol(m);
        if (symbol >= 256) return symbol - 256;
        if (symbol < 0 || !step_all(m, symbol)) break;
        di_buffer_putc(out, (char)symbol);
    }
    return -1;
}

di_status di_grammar_matcher_forced(di_grammar_matcher *m, size_t max_bytes, di_buffer *out,
                                    di_error *error) {
    if (m->waiting || m->ended) return DI_OK;
    if (!save(m)) return no_memory(error);
    enter(m);
    take_forced(m, max_bytes, out);
    leave(m);
    restore(m, &m->history[m->newest]);
    if (m->r.status != DI_OK) return reader_failed(&m->r, error);
    return out->failed ? no_memory(error) : DI_OK;
}

/* Appends the forced text up to a marker, and the marker. *more: something was, and more may be. */
static di_status forced_run(di_grammar_matcher *m, size_t max_ids, di_ids *out, di_buffer *text,
                            bool *more, di_error *error) {
    enum {
        BYTES_PER_ID = 16
    }; /* more than a token usually has; the rest comes with the next call */
    di_buffer_clear(text);
    int marker = take_forced(m, max_ids * BYTES_PER_ID, text);
    size_t before = out->size;
    if (text->failed) return no_memory(error);
    if (text->size > 0) {
        DI_TRY(di_tokenizer_encode(m->g->vocabulary->tokenizer, text->data, text->size, false, out,
                                   error));
        /* What stands at the end may be part of a longer token, unless a marker or an end follows. */
        bool closed = marker >= 0 || only_symbol(m) == -1;
        if (!closed && out->size > before) out->size--;
    }
    *more = marker >= 0;
    if (marker < 0) return DI_OK;
    *more = step_all(m, 256 + marker);
    return di_ids_append(out, &m->g->marker_ids[marker], 1, error);
}

di_status di_grammar_matcher_forced_ids(di_grammar_matcher *m, size_t max_ids, di_ids *out,
                                        di_error *error) {
    if (!m->g->vocabulary) {
        return di_fail(error, DI_ERR_USAGE, "the grammar was compiled without a vocabulary");
    }
    if (m->waiting || m->ended || max_ids == 0) return DI_OK;
    if (max_ids > DI_GRAMMAR_ROLLBACK) max_ids = DI_GRAMMAR_ROLLBACK;
    if (!save(m)) return no_memory(error);
    di_buffer text = DI_BUFFER_EMPTY;
    size_t before = out->size;
    di_status status = DI_OK;
    bool more = true;
    enter(m);
    while (more && status == DI_OK && out->size - before < max_ids) {
        status = forced_run(m, max_ids, out, &text, &more, error);
    }
    leave(m);
    if (out->size - before > max_ids) out->size = before + max_ids;
    restore(m, &m->history[m->newest]);
    di_buffer_free(&text);
    if (m->r.status != DI_OK) return reader_failed(&m->r, error);
    return status;
}
