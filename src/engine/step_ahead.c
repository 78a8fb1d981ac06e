/* Whether steps run ahead: see step_ahead.h. */
#include "engine/step_ahead.h"

static const double rate = 1.0 / 32;

void di_ahead_init(di_ahead *ahead) { *ahead = (di_ahead){.gap_s = -1}; }

void di_ahead_gap(di_ahead *ahead, double gap_s, double step_s) {
    if (!(gap_s >= 0) || !(step_s >= 0)) return;
    if (gap_s > step_s) gap_s = step_s;
    ahead->gap_s = ahead->gap_s < 0 ? gap_s : ahead->gap_s + rate * (gap_s - ahead->gap_s);
}

void di_ahead_ends(di_ahead *ahead, int32_t n_blocks, int32_t n_ended) {
    if (n_blocks <= 0) return;
    ahead->end_share += rate * ((double)n_ended / n_blocks - ahead->end_share);
}

bool di_ahead_pays(di_ahead *ahead, int32_t n_blocks, double block_s) {
    bool look = ahead->gap_s < 0 || ahead->since_look >= DI_AHEAD_LOOK_EVERY;
    if (look || ahead->gap_s <= ahead->end_share * n_blocks * block_s) {
        ahead->since_look = 0;
        return false;
    }
    ahead->since_look++;
    return true;
}
