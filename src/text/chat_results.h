/* Tool results in the order of their calls (spec chat.md 3, step 3). */
#ifndef DI_TEXT_CHAT_RESULTS_H
#define DI_TEXT_CHAT_RESULTS_H

#include "text/chat_turns.h"

/* Inside each user turn the results change places among themselves so that they follow the calls of
 * the last assistant turn with calls; unknown ids count as the first call; otherwise stable. */
di_status chat__sort_results(chat_turns *turns, di_arena *arena, di_error *error);

#endif
