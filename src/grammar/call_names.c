#include "grammar/call_names.h"

#include <string.h>

#include "grammar/vocabulary_internal.h"
#include "text/chat_format.h"

typedef enum head { EITHER, PARAMETER, INVOKE } head;

static const char *const heads[] = {" ", DSML_PARAMETER " name=\"", DSML_INVOKE " name=\""};

/* ---- Following ---- */

void call_names__marker(call_names *names) {
    names->at.n = 0;
    names->at.head = EITHER;
    names->at.in_name = false;
}

/* The quote in front of the open name. */
static const char *open_name(const call_names *names) {
    const char *call = names->used.data + names->at.call;
    return memrchr(call, '"', names->at.size - names->at.call);
}

bool call_names__forbids(const call_names *names, int byte) {
    if (!names->at.in_name || byte != '"') return false;
    /* The open name between its quotes, which no name contains, among those before it. */
    const char *k = names->used.data + names->at.call, *open = open_name(names);
    size_t n = (size_t)(names->used.data + names->at.size - open);
    for (; (k = memmem(k, (size_t)(open - k), open, n)) != NULL; k++) {
        if (k[n] == '"') return true;
    }
    return false;
}

static void put(call_names *names, char byte) {
    names->used.size = names->at.size;
    di_buffer_putc(&names->used, byte);
    names->at.size = names->used.size;
}

void call_names__take(call_names *names, int byte) {
    call_place *at = &names->at;
    if (at->in_name) {
        put(names, (char)byte);
        at->in_name = byte != '"';
        return;
    }
    if (at->n < 0) return;
    if (at->n == 1) at->head = byte == heads[PARAMETER][1] ? PARAMETER : INVOKE;
    if (byte != (unsigned char)heads[at->head][at->n]) {
        at->n = -1;
        return;
    }
    at->n++;
    if (at->head == EITHER || heads[at->head][at->n]) return;
    at->n = -1;
    if (at->head == PARAMETER) {
        at->in_name = true;
    } else {
        at->call = at->size;
        put(names, '"');
    }
}

/* ---- Masks ---- */

/* The node behind `at` (-1: the root) by a byte, or -1. */
static int32_t child(const trie *t, int32_t at, char byte) {
    int32_t end = at < 0 ? t->n : t->nodes[at].end;
    for (int32_t k = at + 1; k < end; k = t->nodes[k].end) {
        if (t->nodes[k].byte == (unsigned char)byte) return k;
    }
    return -1;
}

/* Takes out the tokens that begin with one text and then another. */
static void take_out(const di_vocabulary *v, const char *one, const char *other, size_t n_other,
                     uint32_t *words) {
    const trie *t = &v->all;
    int32_t at = -1;
    size_t n = strlen(one);
    for (size_t i = 0; i < n + n_other; i++) {
        at = child(t, at, i < n ? one[i] : other[i - n]);
        if (at < 0) return;
    }
    for (int32_t i = t->nodes[at].first; i < t->nodes[t->nodes[at].end].first; i++) {
        for (int32_t id = t->tokens[i]; id >= 0; id = v->has_twins ? v->twin[id] : -1) {
            words[id / 32] &= ~(UINT32_C(1) << (id % 32));
        }
    }
}

void call_names__mask(const call_names *names, const di_vocabulary *v, uint32_t *words) {
    const call_place *at = &names->at;
    bool in_head = at->n >= 0 && at->head != INVOKE;
    if ((!at->in_name && !in_head) || at->size == at->call) return;
    const char *call = names->used.data + at->call, *open = open_name(names);
    const char *begun = open + 1;
    size_t n_begun = (size_t)(names->used.data + at->size - begun);
    /* Each used name and its closing quote, behind the quote before it. */
    size_t n = 0;
    for (const char *k = call + 1; k <= open; k += n) {
        n = (size_t)((const char *)memchr(k, '"', (size_t)(open + 1 - k)) + 1 - k);
        if (in_head) {
            take_out(v, heads[PARAMETER] + at->n, k, n, words);
        } else if (n > n_begun && memcmp(k, begun, n_begun) == 0) {
            take_out(v, "", k + n_begun, n - n_begun, words);
        }
    }
}
