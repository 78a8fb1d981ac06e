#include "server/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "grammar/grammar.h"

di_request_env di_request_env_of(const di_engine *engine) {
    di_engine_info info = di_engine_get_info(engine);
    return (di_request_env){.tokenizer = di_engine_tokenizer(engine),
                            .vocab_size = info.vocab_size,
                            .bos_token = info.bos_token,
                            .context = info.context,
                            .sampling = di_engine_sampling(engine)};
}

void di_gen_request_free(di_gen_request *request) {
    for (int32_t i = 0; i < request->n_prompts; i++) di_ids_free(&request->prompts[i]);
    free(request->prompts);
    di_grammar_release(request->grammar);
    di_buffer_free(&request->items);
    di_arena_free(&request->arena);
    memset(request, 0, sizeof *request);
}

di_status di_gen_request_prompts(di_gen_request *request, size_t n, di_error *error) {
    request->prompts = calloc(n, sizeof *request->prompts);
    if (!request->prompts) return di_fail(error, DI_ERR_MEMORY, "out of memory: prompts");
    request->n_prompts = (int32_t)n;
    return DI_OK;
}

di_status di_gen_request_copy(di_gen_request *request, const char *text, size_t size,
                              const char **out, di_error *error) {
    *out = di_arena_strndup(&request->arena, text, size);
    return *out ? DI_OK : di_fail(error, DI_ERR_MEMORY, "out of memory: request");
}

di_status di_gen_request_fits(const di_gen_request *request, const di_request_env *env,
                              const char *what, di_error *error) {
    for (int32_t i = 0; i < request->n_prompts; i++) {
        if (request->prompts[i].size < (size_t)env->context) continue;
        return di_fail(error, DI_ERR_LIMIT,
                       "%s: %zu tokens and one of answer do not fit the context of %lld; shorten "
                       "it or give a larger --context",
                       what, request->prompts[i].size, (long long)env->context);
    }
    return DI_OK;
}
