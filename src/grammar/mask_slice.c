/* Slices: when a state takes every character of a kind, the tokens made of them are allowed at once. */
#include <string.h>

#include "grammar/mask.h"

enum { MAX_PAIRS = 96 };

/* True when every text of the slice's characters can be read from the state on without the rule's
 * ending. Explores pairs of a state and a place within a character; too many count as no. */
static bool takes_all(reader *r, const slice *sl, int32_t start) {
    struct {
        int32_t state;
        uint8_t place;
    } pairs[MAX_PAIRS] = {{start, 0}};
    int n = 1;
    for (int i = 0; i < n; i++) {
        for (int b = 0; b < 256; b++) {
            uint8_t place = sl->next[pairs[i].place][b];
            if (place == SLICE_OUT) continue;
            int32_t to = states__next(r->s, pairs[i].state, b);
            if (to <= STATE_DEAD) return false;
            int k = 0;
            while (k < n && (pairs[k].state != to || pairs[k].place != place)) k++;
            if (k < n) continue;
            if (n == MAX_PAIRS) return false;
            pairs[n].state = to;
            pairs[n++].place = place;
        }
    }
    return true;
}

/* ---- Counted repetitions of a character ---- */

static bool same_but_count(const reader *r, reading a, reading b) {
    if (a.state != b.state || a.stack == STACK_EMPTY || b.stack == STACK_EMPTY) return false;
    const frame *x = &r->frames[a.stack], *y = &r->frames[b.stack];
    return x->ret == y->ret && x->parent == y->parent && x->loop >= 0 && x->loop == y->loop;
}

/* Every character of the slice leads from `at` to one and the same reading, up to where its top frame
 * lies in the pool: gives it. Other readings on the way, or a character that is not taken: false. */
static bool one_character(mask_cache *c, reader *r, const slice *sl, reading at, reading *after) {
    struct {
        reading at;
        uint8_t place;
    } open[MAX_PAIRS] = {{at, 0}};
    int n = 1;
    bool found = false;
    for (int i = 0; i < n; i++) {
        for (int b = 0; b < 256; b++) {
            uint8_t place = sl->next[open[i].place][b];
            if (place == SLICE_OUT) continue;
            c->path.n = 0;
            readings__step(r, open[i].at, b, &c->path, 0);
            if (c->path.n != 1 || r->status != DI_OK) return false;
            reading to = c->path.items[0];
            if (place == 0) {
                if (found && (!same_but_count(r, to, *after) ||
                              r->frames[to.stack].count != r->frames[after->stack].count)) {
                    return false;
                }
                *after = to;
                found = true;
                continue;
            }
            int k = 0;
            while (k < n && (open[k].at.state != to.state || open[k].place != place)) k++;
            if (k < n) {
                if (!readings__same_stack(r, open[k].at.stack, to.stack)) return false;
                continue;
            }
            if (n == MAX_PAIRS) return false;
            open[n].at = to;
            open[n++].place = place;
        }
    }
    return found && after->stack != STACK_EMPTY && r->frames[after->stack].loop >= 0;
}

static bool takes_none(mask_cache *c, reader *r, const slice *sl, reading at) {
    for (int b = 0; b < 256; b++) {
        if (sl->next[0][b] == SLICE_OUT) continue;
        c->path.n = 0;
        readings__step(r, at, b, &c->path, 0);
        if (c->path.n > 0) return false;
    }
    return true;
}

/* How many characters of the slice may come, when they are what a counted repetition repeats; 0 when
 * this cannot be told. Two characters show how it goes on: each leads to the same reading, the count
 * one higher, and what follows the repetition takes none of them. */
static int32_t counted_characters(mask_cache *c, reader *r, const slice *sl, reading at) {
    reading first, second;
    if (!one_character(c, r, sl, at, &first)) return 0;
    frame f = r->frames[first.stack];
    const program_loop *loop = &r->s->p->loops[f.loop];
    if (loop->max == PROGRAM_FOREVER) return 0;
    if (!takes_none(c, r, sl, (reading){f.ret, f.parent})) return 0;
    int32_t left = loop->max - f.count; /* the character at hand is one of them */
    if (left == 1) return 1;
    if (!one_character(c, r, sl, first, &second) || !same_but_count(r, first, second) ||
        r->frames[second.stack].count != f.count + 1) {
        return 0;
    }
    return left;
}

/* ---- */

static void add_counted(const mask_cache *c, const slice *sl, int32_t chars, uint32_t *words) {
    if (chars <= SLICE_COUNTED) {
        mask__or(words, sl->up_to[chars], c->v->n_words);
        return;
    }
    mask__or(words, sl->up_to[SLICE_COUNTED], c->v->n_words);
    for (int32_t i = 0; i < sl->n_longer && sl->longer_chars[i] <= chars; i++) {
        words[sl->longer[i] / 32] |= 1u << (sl->longer[i] % 32);
    }
}

uint8_t mask__kinds(const mask_cache *c, reader *r, int32_t state) {
    enum { KNOWN = 1 << VOCABULARY_SLICES };
    uint8_t kinds = r->s->list[state].kinds;
    if (kinds) return kinds & (KNOWN - 1);
    for (int k = 0; k < VOCABULARY_SLICES; k++) {
        const slice *sl = &c->v->slices[k];
        if (kinds >> k & 1 || !takes_all(r, sl, state)) continue;
        kinds |= sl->within; /* who takes a kind takes what is narrower */
    }
    if (r->s->status == DI_OK) r->s->list[state].kinds = kinds | KNOWN;
    return kinds;
}

const trie *mask__slices(mask_cache *c, reader *r, reading at, uint32_t *words) {
    const di_vocabulary *v = c->v;
    uint8_t kinds = mask__kinds(c, r, at.state);
    if (r->s->status != DI_OK) return &v->all;
    if (kinds) {
        const slice *widest = &v->slices[__builtin_ctz(kinds)];
        mask__or(words, widest->all, v->n_words);
        return &widest->rest;
    }
    /* Only the widest kind: the characters of a string. */
    int32_t n_frames = r->n_frames;
    int32_t chars = counted_characters(c, r, &v->slices[0], at);
    r->n_frames = n_frames;
    if (chars == 0) return &v->all;
    add_counted(c, &v->slices[0], chars, words);
    return &v->slices[0].rest;
}
