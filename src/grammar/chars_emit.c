/* Characters as bytes of a program. */
#include <string.h>

#include "base/utf8.h"
#include "grammar/chars.h"

/* What follows the first byte of a character is the same for many sets that lead to the same node. Made
 * once, the automaton's states within characters are few, which is what slices count on. A table
 * that forgets: a pair of keys in the same slot costs nodes, nothing else. */
enum { MADE_SLOTS = 4096 };

struct made_bytes {
    unsigned char lo[4], hi[4];
    int32_t n, next, node; /* n 0: free */
};

static struct made_bytes *made_slot(compiler *c, const unsigned char *lo, const unsigned char *hi,
                                    int n, int32_t next) {
    if (!c->made) c->made = compiler__alloc(c, MADE_SLOTS, sizeof *c->made);
    if (!c->made) return NULL;
    uint32_t h = (uint32_t)next * 2654435761u + (uint32_t)n;
    for (int i = 0; i < n; i++) h = (h ^ (uint32_t)(lo[i] << 8 | hi[i])) * 16777619u;
    return &c->made[(h ^ h >> 15) % MADE_SLOTS];
}

static int32_t sequences(compiler *c, const unsigned char *lo, const unsigned char *hi, int n,
                         int32_t next);

static int32_t split_sequences(compiler *c, const unsigned char *lo, const unsigned char *hi, int n,
                               int32_t next) {
    static const unsigned char first[3] = {0x80, 0x80, 0x80}, last[3] = {0xbf, 0xbf, 0xbf};
    program *p = &c->p;
    bool low_full = true, high_full = true; /* what follows the first byte is all there is */
    for (int i = 1; i < n; i++) {
        low_full &= lo[i] == 0x80;
        high_full &= hi[i] == 0xbf;
    }
    if (lo[0] == hi[0]) {
        return program__bytes(p, lo[0], lo[0], sequences(c, lo + 1, hi + 1, n - 1, next));
    }
    int32_t result = PROGRAM_FAIL;
    int from = lo[0], to = hi[0];
    if (!low_full) {
        result = program__bytes(p, from, from, sequences(c, lo + 1, last, n - 1, next));
        from++;
    }
    if (!high_full) {
        int32_t part = program__bytes(p, to, to, sequences(c, first, hi + 1, n - 1, next));
        result = program__split(p, part, result);
        to--;
    }
    if (from <= to) {
        int32_t part = program__bytes(p, from, to, sequences(c, first, last, n - 1, next));
        result = program__split(p, part, result);
    }
    return result;
}

/* Sequences of n bytes between lo and hi (same length, in order), then next. */
static int32_t sequences(compiler *c, const unsigned char *lo, const unsigned char *hi, int n,
                         int32_t next) {
    if (n == 0) return next;
    struct made_bytes *made = made_slot(c, lo, hi, n, next);
    if (!made) return PROGRAM_FAIL;
    bool same = made->n == n && made->next == next && memcmp(made->lo, lo, (size_t)n) == 0 &&
                memcmp(made->hi, hi, (size_t)n) == 0;
    if (same) return made->node;
    int32_t node = split_sequences(c, lo, hi, n, next);
    memcpy(made->lo, lo, (size_t)n);
    memcpy(made->hi, hi, (size_t)n);
    made->n = n;
    made->next = next;
    made->node = node;
    return node;
}

/* Characters lo..hi as UTF-8, without surrogates. */
static int32_t range(compiler *c, uint32_t lo, uint32_t hi, int32_t next) {
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, CHARS_LAST};
    int32_t result = PROGRAM_FAIL;
    for (int i = 0; i < 6 && lo <= hi; i++) {
        if (lo > ends[i]) continue;
        uint32_t end = hi < ends[i] ? hi : ends[i];
        if (i != 3) { /* surrogates */
            char low[4], high[4];
            int n = (int)di_utf8_encode(lo, low);
            di_utf8_encode(end, high);
            int32_t part = sequences(c, (unsigned char *)low, (unsigned char *)high, n, next);
            result = program__split(&c->p, part, result);
        }
        lo = end + 1;
    }
    return result;
}

/* The escape of a character that cannot stand in a JSON string as it is. */
static int32_t escape(compiler *c, uint32_t code, int32_t next) {
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    program *p = &c->p;
    for (const char *s = shorts; *s; s += 2) {
        char text[2] = {'\\', s[1]};
        if ((unsigned char)*s == code) return program__literal(p, text, 2, next);
    }
    static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    int low = (unsigned char)lower[code & 15], high = (unsigned char)upper[code & 15];
    int32_t digit = program__bytes(p, low, low, next);
    if (low != high) digit = program__split(p, digit, program__bytes(p, high, high, next));
    char text[5] = {'\\', 'u', '0', '0', lower[code >> 4]};
    return program__literal(p, text, 5, digit);
}

int32_t chars__emit_set(compiler *c, const char_set *set, char_form form, int32_t next) {
    int32_t result = PROGRAM_FAIL;
    for (int32_t i = 0; i < set->n && compiler__spend(c, 4); i++) {
        uint32_t lo = set->ranges[i].lo, hi = set->ranges[i].hi;
        while (form == CHAR_JSON && lo <= hi && lo <= '\\') {
            uint32_t end = lo;
            int32_t part;
            if (lo < 0x20 || lo == '"' || lo == '\\') {
                part = escape(c, lo, next);
            } else {
                uint32_t stop = lo < '"' ? '"' - 1 : '\\' - 1;
                end = hi < stop ? hi : stop;
                part = range(c, lo, end, next);
            }
            result = program__split(&c->p, part, result);
            lo = end + 1;
        }
        if (lo <= hi) result = program__split(&c->p, range(c, lo, hi, next), result);
    }
    return result;
}

/* All characters that lead from a state to one other, as a set. */
static char_set characters_to(compiler *c, const char_state *s, int32_t to) {
    char_set set = {0};
    for (int32_t k = 0; k < s->n_edges; k++) {
        if (s->edges[k].to == to) chars__add(c, &set, s->edges[k].lo, s->edges[k].hi);
    }
    return set;
}

int32_t chars__emit_dfa(compiler *c, const char_dfa *a, char_form form, int32_t next) {
    if (!a || a->n == 0 || next == PROGRAM_FAIL) return PROGRAM_FAIL;
    program *p = &c->p;
    int32_t *nodes = compiler__alloc(c, (size_t)a->n, sizeof *nodes);
    bool *done = compiler__alloc(c, (size_t)a->n, sizeof *done);
    if (!nodes || !done) return PROGRAM_FAIL;
    for (int32_t i = 0; i < a->n; i++) nodes[i] = program__open(p);
    for (int32_t i = 0; i < a->n && c->status == DI_OK && p->status == DI_OK; i++) {
        const char_state *s = &a->states[i];
        int32_t all = PROGRAM_FAIL;
        for (int32_t k = 0; k < s->n_edges; k++) {
            int32_t to = s->edges[k].to;
            if (done[to]) continue;
            done[to] = true;
            if (!compiler__spend(c, s->n_edges / 8 + 1)) return PROGRAM_FAIL;
            char_set set = characters_to(c, s, to);
            all = program__split(p, chars__emit_set(c, &set, form, nodes[to]), all);
        }
        for (int32_t k = 0; k < s->n_edges; k++) done[s->edges[k].to] = false;
        program__close(p, nodes[i], all, s->accepting ? next : PROGRAM_FAIL);
    }
    return nodes[0];
}
