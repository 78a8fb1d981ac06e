/* Numbers with bounds: automata over their digits.
 *
 * A bounded number is written without exponent, so that its value can be told digit by digit: the
 * whole part is compared by length and then from the front, the fraction behind it. A multiple is
 * told by the remainder of the digits so far.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

enum { MAX_FACTOR = 5000 };

/* ---- A bound ---- */

typedef enum bound { AT_LEAST, ABOVE, AT_MOST, BELOW } bound;

/* States of reading a number against |B|: sign, whole or fraction, digits read (as far as B has any,
 * and one more), and how they compare so far (-1, 0, 1). */
typedef struct comparer {
    compiler *c;
    const decimal *b;
    bound kind;
    int n_whole, n_fraction;
    char_dfa *out;
    int32_t *ids; /* made states, + 1 */
} comparer;

typedef struct place {
    int minus, in_fraction, n, order;
} place;

static int32_t place_index(const comparer *k, place p) {
    int width = (k->n_whole > k->n_fraction ? k->n_whole : k->n_fraction) + 2;
    return ((p.minus * 2 + p.in_fraction) * width + p.n) * 3 + p.order + 1;
}

/* The comparison of |x| with |B| when the text ends here. */
static int final_order(const comparer *k, place p) {
    int order = p.order;
    if (!p.in_fraction) {
        if (p.n != k->n_whole) order = p.n < k->n_whole ? -1 : 1;
        return order == 0 && k->n_fraction > 0 ? -1 : order;
    }
    return order == 0 && p.n < k->n_fraction ? -1 : order;
}

static bool holds(const comparer *k, place p) {
    int order = final_order(k, p);
    bool zero_bound = strcmp(k->b->whole, "0") == 0 && k->n_fraction == 0;
    if (p.minus) {
        if (k->b->negative || (zero_bound && order == 0)) {
            order = -order;
        } else {
            order = -1;
        }
    } else if (k->b->negative) {
        order = 1;
    }
    switch (k->kind) {
    case AT_LEAST: return order >= 0;
    case ABOVE: return order > 0;
    case AT_MOST: return order <= 0;
    case BELOW: return order < 0;
    }
    return false;
}

static int32_t at_place(comparer *k, place p) {
    int32_t *id = &k->ids[place_index(k, p)];
    if (*id == 0) *id = chars__add_state(k->c, k->out, holds(k, p)) + 1;
    return *id - 1;
}

static place after_digit(const comparer *k, place p, int digit) {
    const char *digits = p.in_fraction ? k->b->fraction : k->b->whole;
    int n = p.in_fraction ? k->n_fraction : k->n_whole;
    if (p.order == 0) {
        int other = p.n < n         ? digits[p.n]
                    : p.in_fraction ? '0'
                                    : digit; /* longer: told by length */
        p.order = (digit > other) - (digit < other);
    }
    if (p.n <= n) p.n++;
    return p;
}

static void digits_from(comparer *k, int32_t from, place p) {
    for (int digit = '0'; digit <= '9'; digit++) {
        int32_t to = at_place(k, after_digit(k, p, digit));
        if (to >= 0 && from >= 0) {
            chars__add_edge(k->c, k->out, from, (uint32_t)digit, (uint32_t)digit, to);
        }
    }
}

static void all_edges(comparer *k, place p) {
    int32_t from = k->ids[place_index(k, p)] - 1;
    if (from < 0) return;
    if (!p.in_fraction) {
        place behind = {p.minus, 1, 0, p.order};
        if (p.n != k->n_whole) behind.order = p.n < k->n_whole ? -1 : 1;
        int32_t to = at_place(k, behind);
        if (to >= 0) chars__add_edge(k->c, k->out, from, '.', '.', to);
    }
    digits_from(k, from, p);
}

/* Texts of numbers (the syntax is told elsewhere) that keep the bound. */
static char_dfa *bounded(compiler *c, const decimal *b, bound kind) {
    comparer k = {.c = c, .b = b, .kind = kind};
    k.n_whole = (int)strlen(b->whole);
    k.n_fraction = (int)strlen(b->fraction);
    int width = (k.n_whole > k.n_fraction ? k.n_whole : k.n_fraction) + 2;
    k.out = compiler__alloc(c, 1, sizeof *k.out);
    k.ids = compiler__alloc(c, (size_t)width * 12 + 12, sizeof *k.ids);
    if (!k.out || !k.ids) return NULL;
    int32_t start = chars__add_state(c, k.out, false), minus = chars__add_state(c, k.out, false);
    if (minus < 0) return NULL;
    chars__add_edge(c, k.out, start, '-', '-', minus);
    digits_from(&k, start, (place){0, 0, 0, 0});
    digits_from(&k, minus, (place){1, 0, 0, 0});
    /* Whole parts by length, then fractions: each place is made before its edges are asked for. */
    for (int fraction = 0; fraction < 2; fraction++) {
        for (int n = 0; n < width && c->status == DI_OK; n++) {
            for (int i = 0; i < 6; i++) all_edges(&k, (place){i / 3, fraction, n, i % 3 - 1});
        }
    }
    return c->status == DI_OK ? k.out : NULL;
}

/* ---- Multiples ---- */

/* Texts whose value is a multiple of m = a / 10^p. State v: whole part with remainder v; behind the
 * point, (j, v) after j of the p digits that count; what follows those is 0. */
static char_dfa *multiples(schema *s, const decimal *m) {
    compiler *c = s->c;
    int p = (int)strlen(m->fraction);
    long a = strlen(m->whole) + (size_t)p > 9 ? MAX_FACTOR + 1 : atol(m->whole);
    for (const char *d = m->fraction; *d && a <= MAX_FACTOR; d++) a = a * 10 + (*d - '0');
    if (a > MAX_FACTOR || p > 6 || m->negative || a == 0) {
        schema__fail(s, DI_ERR_UNSUPPORTED, s->at, "multipleOf",
                     "of multiples only those of a positive number up to 5000 (without its point) "
                     "are supported");
        return NULL;
    }
    char_dfa *out = compiler__alloc(c, 1, sizeof *out);
    if (!out) return NULL;
    long scale[8] = {1};
    for (int j = 1; j <= p; j++) scale[j] = scale[j - 1] * 10;
    for (int j = -1; j <= p; j++) {
        long left = j < 0 ? scale[p] : scale[p - j];
        for (long v = 0; v < a; v++) {
            if (chars__add_state(c, out, v * left % a == 0) < 0) return NULL;
        }
    }
    for (int32_t i = 0; i < out->n && c->status == DI_OK; i++) {
        long j = i / a - 1, v = i % a;
        if (i == 0) chars__add_edge(c, out, 0, '-', '-', 0);
        if (j < 0) chars__add_edge(c, out, i, '.', '.', (int32_t)(a + v));
        if (j == p) {
            chars__add_edge(c, out, i, '0', '0', i);
            continue;
        }
        for (int digit = 0; digit <= 9; digit++) {
            int32_t to = (int32_t)((j < 0 ? 0 : j + 2) * a + (v * 10 + digit) % a);
            chars__add_edge(c, out, i, (uint32_t)('0' + digit), (uint32_t)('0' + digit), to);
        }
    }
    return out;
}

/* ---- All of it ---- */

static char_dfa *expression(schema *s, const char *text) {
    return regex__determine(s->c, regex__parse(s->c, text, strlen(text), false, "number"));
}

/* Fractions have 15 digits at most: as many as a double keeps apart, so that whoever reads the number as
 * one does not see it on the other side of its bound. */
static char_dfa *fractions(schema *s) {
    enum { DIGITS = 15 };
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_printf(&text, "-?(0\\.[0-9]{1,%d}", DIGITS - 1);
    for (int whole = 1; whole < DIGITS; whole++) {
        di_buffer_printf(&text, "|[1-9][0-9]{%d}\\.[0-9]{1,%d}", whole - 1, DIGITS - whole);
    }
    di_buffer_putc(&text, ')');
    char_dfa *all = text.failed ? NULL : expression(s, text.data);
    if (text.failed) compiler__fail(s->c, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    di_buffer_free(&text);
    return all;
}

/* Numbers before their bounds. Remainders are told by a division of doubles elsewhere, so numbers
 * that have to be multiples have 15 digits too. */
static char_dfa *syntax(schema *s, const number_alt *a) {
    compiler *c = s->c;
    const char *short_digits = "0|-?[1-9][0-9]{0,14}", *long_digits = "0|-?[1-9][0-9]{0,63}";
    char_dfa *whole = expression(s, a->n_multiples ? short_digits : long_digits);
    if (a->integer) return whole;
    char_dfa *broken = fractions(s);
    if (a->broken) {
        return chars__intersect(c, broken, expression(s, "[-0-9]+\\.[0-9]*[1-9][0-9]*"));
    }
    /* Either: all of -0.9, without what is neither. */
    char_dfa *all = expression(s, "-?[0-9]+(\\.[0-9]+)?");
    char_dfa *neither = all && whole ? chars__subtract(c, all, whole) : NULL;
    neither = neither && broken ? chars__subtract(c, neither, broken) : NULL;
    return neither ? chars__subtract(c, all, neither) : NULL;
}

char_dfa *schema__number_dfa(schema *s, const number_alt *a) {
    compiler *c = s->c;
    char_dfa *all = syntax(s, a);
    const decimal *lo = a->lo && a->lo_open ? schema__open_bound(s, a->lo, true) : a->lo;
    const decimal *hi = a->hi && a->hi_open ? schema__open_bound(s, a->hi, false) : a->hi;
    if (lo) all = chars__intersect(c, all, bounded(c, lo, a->lo_open ? ABOVE : AT_LEAST));
    if (hi) all = chars__intersect(c, all, bounded(c, hi, a->hi_open ? BELOW : AT_MOST));
    for (int32_t i = 0; i < a->n_multiples; i++) {
        all = chars__intersect(c, all, multiples(s, a->multiples[i]));
    }
    return all;
}

bool schema__number_is_empty(schema *s, const number_alt *a) {
    if (a->integer && a->broken) return true;
    if (!a->lo || !a->hi) return false;
    int order = schema__compare(a->lo, a->hi);
    if (order > 0 || (order == 0 && (a->lo_open || a->hi_open))) return true;
    if (order == 0) {
        const char *text = schema__decimal_text(s, a->lo);
        bool whole = !*a->lo->fraction;
        if ((a->integer && !whole) || (a->broken && whole)) return true;
        for (int32_t i = 0; i < a->n_multiples; i++) {
            const char_dfa *m = multiples(s, a->multiples[i]);
            if (m && !chars__matches(m, text, strlen(text))) return true;
        }
        return false;
    }
    if (a->n_multiples == 0) return a->integer && !schema__holds_an_integer(s, a);
    const char_dfa *all = schema__number_dfa(s, a);
    return all && chars__is_empty(all);
}
