/* One request of a batch while it runs, and its result as a line of JSON. */
#ifndef DI_CLI_BATCH_JOB_H
#define DI_CLI_BATCH_JOB_H

#include "cli/batch_file.h"
#include "cli/batch_line.h"
#include "cli/generate.h"

typedef struct di_batch_choice {
    di_answer answer;
    di_reader *reader;
    di_top_token *top; /* [answer.ids.size][line.request.top_logprobs] */
    size_t top_capacity;
} di_batch_choice;

typedef struct di_batch_job {
    struct di_batch_job *before, *after; /* for the owner's list */
    di_batch_key key;
    di_batch_line line;
    di_batch_choice *choices; /* line.request.n_choices of them */
    int32_t n_open;           /* choices that run */
    int32_t eos_token, n_top; /* n_top: at most the vocabulary */
    di_error failure;         /* status DI_OK: none */
} di_batch_job;

/* Readers for the choices of a line that was read; the line belongs to the job. */
di_status di_batch_job_prepare(di_batch_job *job, const di_engine *engine, di_error *error);
/* Queues it; the job must stay where it is until n_open is 0 or the engine is closed. */
di_status di_batch_job_submit(di_batch_job *job, di_engine *engine, di_error *error);
void di_batch_job_destroy(di_batch_job *job);

/* The result of a job that ended well, newline included; `model` stands where the line names none.
 */
void di_batch_write_result(const di_batch_job *job, const di_tokenizer *tokenizer,
                           const char *model, di_buffer *out);
/* An error alone; custom_id NULL: null. */
void di_batch_write_error(const di_batch_key *key, const char *custom_id, size_t custom_id_size,
                          const di_error *why, di_buffer *out);

#endif
