/* One line of a batch: a request of the OpenAI dialect, read and checked field by field.
 *
 * Fields that would change the answer and are not known are refused by name; null stands for a
 * field that is not there.
 */
#ifndef DI_CLI_BATCH_LINE_H
#define DI_CLI_BATCH_LINE_H

#include "server/request.h"

typedef struct di_batch_line {
    di_arena arena; /* what the pointers below point into */
    const char *custom_id;
    size_t custom_id_size;
    const di_json *body;
    bool chat;              /* /v1/chat/completions; else /v1/completions */
    di_gen_request request; /* one prompt */
} di_batch_line;

/* Start zeroed; free in any case. First the envelope (custom_id, method, url, body), so that a
 * failure in the body can be told under the custom_id; then the body. `what` names the line. */
di_status di_batch_line_open(di_batch_line *line, const char *text, size_t size, const char *what,
                             di_error *error);
di_status di_batch_line_read(di_batch_line *line, const di_request_env *env, di_error *error);
void di_batch_line_free(di_batch_line *line);

#endif
