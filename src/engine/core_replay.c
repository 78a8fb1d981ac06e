/* The three modes of replay: from where rows must run when pages are there and windows are not.
 *
 * A window of W tokens at layer l is right from l (W - 1) tokens behind the place where rows began
 * to run: each layer loses W - 1. So the windows of all L layers at the end of a hit cost L (W - 1)
 * tokens before it, those of the E layers below the cut E (W - 1). README.md of this folder.
 */
#include "engine/core_internal.h"

int64_t core__cut_of(const di_core *core, int64_t n_prompt, bool scores) {
    int64_t tail = core->config->sliding_window;
    /* Log-probabilities of the prompt need every row of it. */
    if (core->options.replay == DI_REPLAY_EXACT || scores || n_prompt <= tail) return 0;
    return n_prompt - tail;
}

int64_t core__replay_start(const di_core *core, int64_t hit, int64_t cut) {
    const di_config *c = core->config;
    int64_t lost = c->sliding_window - 1, layers = c->num_hidden_layers, from = hit;
    switch (core->options.replay) {
    case DI_REPLAY_EXACT: break;
    case DI_REPLAY_STABLE:
        if (cut == 0) break; /* all layers from the start: as in exact */
        layers = di_model_cut_layer(c);
        if (from > cut) from = cut;
        break;
    case DI_REPLAY_BOUNDED:
        layers = 1;
        lost = c->sliding_window;
        break;
    }
    from -= layers * lost;
    return from > 0 ? from : 0;
}
