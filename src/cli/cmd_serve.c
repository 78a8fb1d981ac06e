/* serve: the model under the HTTP interfaces that clients already speak. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/engine_args.h"
#include "server/server.h"

/* The names of DeepSeek's service, so that its clients need no other than the address. */
static const char *const public_names[] = {"deepseek-flash", "deepseek-v4-flash", "deepseek-chat",
                                           "deepseek-reasoner"};

/* What a client may call the model: --name, or its path, the last part of that, and the public names.
 * Free *names and *owned. */
static di_status name_models(const di_args *args, const char ***names, int *n, char **owned,
                             di_error *error) {
    enum { N_PUBLIC = sizeof public_names / sizeof *public_names };
    int n_given;
    const char *const *given = di_args_list(args, DI_OPT_NAME, &n_given);
    const char *path = args->positional[0];
    *names = calloc((size_t)n_given + N_PUBLIC + 2, sizeof **names);
    *owned = strdup(path);
    if (!*names || !*owned) return di_fail(error, DI_ERR_MEMORY, "out of memory: names");
    for (*n = 0; *n < n_given; (*n)++) (*names)[*n] = given[*n];
    if (n_given > 0) return DI_OK;
    size_t size = strlen(*owned);
    while (size > 1 && (*owned)[size - 1] == '/') (*owned)[--size] = '\0';
    char *slash = strrchr(*owned, '/');
    const char *last = slash && slash[1] ? slash + 1 : *owned;
    (*names)[(*n)++] = last;
    if (strcmp(last, path) != 0) (*names)[(*n)++] = path;
    for (int i = 0; i < N_PUBLIC; i++) (*names)[(*n)++] = public_names[i];
    return DI_OK;
}

static void server_options(const di_args *args, di_server_options *out) {
    *out = di_server_options_defaults();
    out->host = di_args_text(args, DI_OPT_HOST);
    out->port = (int)di_args_int(args, DI_OPT_PORT);
    out->key_file = di_args_text(args, DI_OPT_API_KEYS);
    out->cors = di_args_text(args, DI_OPT_CORS);
    out->page = di_args_flag(args, DI_OPT_PAGE);
    out->any_model = di_args_flag(args, DI_OPT_ANY_NAME);
    out->max_queue = di_args_int(args, DI_OPT_MAX_QUEUE);
    out->max_connections = di_args_int(args, DI_OPT_MAX_CONNECTIONS);
    out->max_body = (size_t)di_args_unsigned(args, DI_OPT_MAX_BODY);
    out->max_unsent = (size_t)di_args_unsigned(args, DI_OPT_MAX_UNSENT);
    out->response_store = (size_t)di_args_unsigned(args, DI_OPT_RESPONSE_STORE);
    out->keep_alive_s = di_args_real(args, DI_OPT_KEEP_ALIVE);
    out->read_timeout_s = di_args_real(args, DI_OPT_READ_TIMEOUT);
    out->idle_timeout_s = di_args_real(args, DI_OPT_IDLE_TIMEOUT);
    out->write_timeout_s = di_args_real(args, DI_OPT_WRITE_TIMEOUT);
    out->drain_timeout_s = di_args_real(args, DI_OPT_DRAIN_TIMEOUT);
    bool vllm = strcmp(di_args_text(args, DI_OPT_METRICS), "vllm") == 0;
    out->metrics_prefix = vllm ? "vllm:" : "deepinfer:";
    out->max_batch = (int32_t)di_args_int(args, DI_OPT_MAX_BATCH);
    out->prefix_cache = strcmp(di_args_text(args, DI_OPT_PREFIX_CACHE), "on") == 0;
    out->debug = di_args_flag(args, DI_OPT_DEBUG);
    out->slow_step_s = 1e-3 * di_args_real(args, DI_OPT_SLOW_STEP_MS);
    out->log = stderr;
    out->log_requests = !di_args_flag(args, DI_OPT_QUIET);
}

di_status di_cmd_serve(const di_args *args, di_error *error) {
    di_server_options options;
    di_progress loading;
    di_engine *engine = NULL;
    const di_tokenizer *tokenizer;
    const char **names = NULL;
    char *owned = NULL;
    memset(&loading, 0, sizeof loading);
    server_options(args, &options);
    di_status status = name_models(args, &names, &options.n_models, &owned, error);
    options.models = names;
    /* Before the weights are opened: nobody waits minutes to read that the port is taken. */
    if (status == DI_OK) status = di_server_check(&options, error);
    if (status == DI_OK) {
        status = di_args_open_engine(args, args->positional[0], &loading, &engine, error);
    }
    if (status == DI_OK) {
        status = di_engine_need_tokenizer(engine, args->positional[0], &tokenizer, error);
    }
    if (status == DI_OK) status = di_server_run(engine, &options, error);
    di_engine_close(engine);
    free(names);
    free(owned);
    return status;
}
