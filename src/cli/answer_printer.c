#include "cli/answer_printer.h"

#include <stdio.h>

#include "cli/terminal.h"

static void put(di_answer_printer *p, const char *text, size_t size) {
    if (size == 0) return;
    fwrite(text, 1, size, stdout);
    p->last = text[size - 1];
}

static void end_thought(di_answer_printer *p) {
    if (!p->in_thought) return;
    p->in_thought = false;
    if (p->style) fputs(DI_STYLE_OFF, stdout);
    put(p, "\n\n", p->last == '\n' ? 1 : 2);
}

void di_answer_printer_part(di_answer_printer *p, di_part part, const char *text, size_t size) {
    if (!p->show) return;
    switch (part) {
    case DI_PART_THOUGHT:
        if (!p->thoughts) return;
        if (!p->in_thought && p->style) fputs(DI_STYLE_DIM, stdout);
        p->in_thought = true;
        put(p, text, size);
        break;
    case DI_PART_ANSWER:
        end_thought(p);
        put(p, text, size);
        break;
    case DI_PART_CALL_NAME:
        end_thought(p);
        if (p->last && p->last != '\n') put(p, "\n", 1);
        put(p, "call ", 5);
        put(p, text, size);
        put(p, " ", 1);
        break;
    case DI_PART_CALL_ARGUMENTS: put(p, text, size); break;
    case DI_PART_CALL_END:
    case DI_PART_CALL_BROKEN: put(p, "\n", 1); break;
    }
    fflush(stdout);
}

void di_answer_printer_end(di_answer_printer *p) {
    if (!p->show) return;
    if (p->in_thought && p->style) fputs(DI_STYLE_OFF, stdout);
    if (p->last && p->last != '\n') fputc('\n', stdout);
    fflush(stdout);
}
