/* The literals of the chat's wire format (spec chat.md). They must match byte for byte.
 *
 * The bars are U+FF5C and the low blocks U+2581. A CHAT_* marker is one added token; the rest is
 * ordinary text.
 */
#ifndef DI_TEXT_CHAT_FORMAT_H
#define DI_TEXT_CHAT_FORMAT_H

#define CHAT_BOS "<｜begin▁of▁sentence｜>"
#define CHAT_EOS "<｜end▁of▁sentence｜>"
#define CHAT_SYSTEM "<｜System｜>"
#define CHAT_USER "<｜User｜>"
#define CHAT_ASSISTANT "<｜Assistant｜>"
#define CHAT_REMINDER "<｜latest_reminder｜>"
#define CHAT_THINK_OPEN "<think>"
#define CHAT_THINK_CLOSE "</think>"
#define CHAT_IMAGE "<｜deepseek_image｜>"

/* Tool calls: the marker stands between ordinary "<" or "</" and one of the tag names. The names
 * begin with a space; the V4 format, whose block end models still write, has none. */
#define CHAT_DSML "｜DSML｜"
#define DSML_OPEN "<" CHAT_DSML
#define DSML_CLOSE "</" CHAT_DSML
#define DSML_CALLS " calls"
#define DSML_INVOKE " invoke"
#define DSML_PARAMETER " parameter"

#endif
