/* Decimal numbers: read from JSON, compared and rounded, digit by digit. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

enum { MAX_DIGITS = 400 };

/* The digits of a JSON number without its point, and where the point stands. */
static bool read_digits(const di_json *number, char *digits, int *n, long *point) {
    const char *t = number->text + (*number->text == '-');
    *n = 0;
    *point = -1;
    for (; *t && *t != 'e' && *t != 'E'; t++) {
        if (*t == '.') {
            *point = *n;
        } else if (*n < MAX_DIGITS) {
            digits[(*n)++] = *t;
        } else {
            return false;
        }
    }
    if (*point < 0) *point = *n;
    long exponent = *t ? strtol(t + 1, NULL, 10) : 0;
    if (exponent > MAX_DIGITS || exponent < -MAX_DIGITS) return false;
    *point += exponent;
    return *point <= MAX_DIGITS && *n - *point <= MAX_DIGITS;
}

const decimal *schema__decimal(schema *s, const di_json *number, const char *keyword) {
    char digits[MAX_DIGITS];
    char padded[3 * MAX_DIGITS + 4];
    int n;
    long point;
    if (!number || number->type != DI_JSON_NUMBER) {
        schema__fail(s, DI_ERR_INVALID, s->at, keyword, "must be a number");
        return NULL;
    }
    if (!read_digits(number, digits, &n, &point)) {
        schema__fail(s, DI_ERR_LIMIT, s->at, keyword, "a number with more than 400 digits");
        return NULL;
    }
    /* whole: digits[0..point), fraction: the rest, both padded with zeros. */
    size_t n_whole = 0;
    for (long i = 0; i < point; i++) padded[n_whole++] = i < n ? digits[i] : '0';
    size_t skip = 0;
    while (skip < n_whole && padded[skip] == '0') skip++;
    char *fraction = padded + n_whole;
    size_t n_fraction = 0;
    for (long i = point; i < n; i++) fraction[n_fraction++] = i < 0 ? '0' : digits[i];
    while (n_fraction > 0 && fraction[n_fraction - 1] == '0') n_fraction--;
    decimal *d = compiler__alloc(s->c, 1, sizeof *d);
    if (!d) return NULL;
    d->whole =
        skip == n_whole ? "0" : di_arena_strndup(&s->c->arena, padded + skip, n_whole - skip);
    d->fraction = di_arena_strndup(&s->c->arena, fraction, n_fraction);
    if (!d->whole || !d->fraction) {
        compiler__fail(s->c, DI_ERR_MEMORY, "out of memory while compiling a grammar");
        return NULL;
    }
    bool zero = strcmp(d->whole, "0") == 0 && !*d->fraction;
    d->negative = *number->text == '-' && !zero;
    return d;
}

static int compare_size(const decimal *a, const decimal *b) {
    size_t x = strlen(a->whole), y = strlen(b->whole);
    if (x != y) return x < y ? -1 : 1;
    int order = strcmp(a->whole, b->whole);
    return order ? order : strcmp(a->fraction, b->fraction);
}

int schema__compare(const decimal *a, const decimal *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    return a->negative ? -compare_size(a, b) : compare_size(a, b);
}

const char *schema__decimal_text(schema *s, const decimal *d) {
    size_t size = strlen(d->whole) + strlen(d->fraction) + 3;
    char *text = compiler__alloc(s->c, size, 1);
    if (!text) return "0";
    strcpy(text, d->negative ? "-" : "");
    strcat(text, d->whole);
    if (*d->fraction) strcat(strcat(text, "."), d->fraction);
    return text;
}

/* ---- Whole numbers within bounds ---- */

/* 1 or -1 added to a whole number. */
static const decimal *next_whole(schema *s, const decimal *d, bool up) {
    size_t n = strlen(d->whole);
    decimal *next = compiler__alloc(s->c, 1, sizeof *next);
    char *digits = compiler__alloc(s->c, n + 2, 1);
    if (!next || !digits) return d;
    *digits = '0';
    memcpy(digits + 1, d->whole, n);
    bool zero = strcmp(d->whole, "0") == 0, grows = zero || d->negative != up;
    size_t i = n;
    for (char over = grows ? '9' : '0'; digits[i] == over; i--) digits[i] = grows ? '0' : '9';
    digits[i] = (char)(digits[i] + (grows ? 1 : -1));
    const char *whole = digits;
    while (*whole == '0' && whole[1]) whole++;
    bool negative = zero ? !up : d->negative && strcmp(whole, "0") != 0;
    *next = (decimal){negative, whole, ""};
    return next;
}

/* The whole number at a bound or the nearest one within. */
static const decimal *whole_within(schema *s, const decimal *bound, bool open, bool up) {
    decimal *whole = compiler__alloc(s->c, 1, sizeof *whole);
    if (!whole) return bound;
    bool zero = strcmp(bound->whole, "0") == 0;
    *whole = (decimal){bound->negative && !zero, bound->whole, ""};
    /* Without its fraction a bound has moved towards zero. */
    bool within = *bound->fraction ? bound->negative == up : !open;
    return within ? whole : next_whole(s, whole, up);
}

bool schema__holds_an_integer(schema *s, const number_alt *a) {
    return schema__compare(whole_within(s, a->lo, a->lo_open, true),
                           whole_within(s, a->hi, a->hi_open, false)) <= 0;
}

/* ---- Bounds as doubles see them ---- */

const decimal *schema__open_bound(schema *s, const decimal *bound, bool up) {
    enum { DIGITS = 15, PLACES = 120 }; /* numbers with fractions have 14 places at most */
    static_assert(LDBL_MANT_DIG > DBL_MANT_DIG, "the middle between two doubles is no long double");
    if (strlen(bound->whole) + strlen(bound->fraction) <= DIGITS) return bound;
    double d = strtod(schema__decimal_text(s, bound), NULL);
    double next = nextafter(d, up ? HUGE_VAL : -HUGE_VAL);
    if (isinf(d) || isinf(next)) return bound; /* no number here is as large */
    char text[400 + PLACES];
    snprintf(text, sizeof text, "%.*Lf", (int)PLACES, ((long double)d + (long double)next) / 2);
    di_json number = {.type = DI_JSON_NUMBER, .text = text, .length = strlen(text)};
    const decimal *middle = schema__decimal(s, &number, NULL);
    if (!middle) return bound;
    bool farther = up ? schema__compare(middle, bound) > 0 : schema__compare(middle, bound) < 0;
    return farther ? middle : bound;
}
