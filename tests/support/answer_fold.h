/* An answer as a client reads it: what a body or a stream of events in some dialect comes to, in one
 * form that depends neither on the dialect nor on where pieces were cut.
 *
 * On the way it checks the form of the dialect: whole characters in every event, JSON in every event,
 * blocks that open before they grow and close before the next, texts that are told again at the end of
 * a block the same as their pieces, one end and nothing behind it. What is wrong fails the test.
 */
#ifndef DI_TESTS_ANSWER_FOLD_H
#define DI_TESTS_ANSWER_FOLD_H

#include "base/buffer.h"
#include "base/json.h"
#include "server/request.h"

typedef struct answer_fold {
    di_buffer thought, text;
    di_buffer calls;   /* NAME ARGUMENTS newline, of each */
    di_buffer spelled; /* the bytes of the tokens that were reported, one behind the other (chat) */
    size_t n_tokens;   /* reported */
    char finish[24];   /* stop, length or calls; Responses say stop for calls too */
    char stop[40];     /* the stop text that is named (messages); "" */
    int64_t n_answer;  /* tokens, of the usage; -1: none was told */
    /* Inside. */
    di_dialect dialect;
    int choice;
    int n_events, n_blocks;
    bool open, ended;
    char kind[16];   /* of the block that is open */
    di_buffer block; /* its text */
} answer_fold;

/* Of `choice`; the others are passed over. Start from zeroed memory; answer_fold_free at the end. */
void answer_fold_whole(di_dialect dialect, int choice, const char *body, size_t size,
                       answer_fold *out);
void answer_fold_stream(di_dialect dialect, int choice, const char *events, size_t size,
                        answer_fold *out);
/* "T:thought|A:text|C:calls|F:finish", NUL-terminated. */
void answer_fold_write(const answer_fold *fold, di_buffer *out);
void answer_fold_free(answer_fold *fold);

#endif
