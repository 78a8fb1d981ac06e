/* Tables of bench: each row to the terminal and into the JSON document. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/lossy.h"
#include "cli/bench.h"
#include "cli/terminal.h"

enum { MIN_WIDTH = 9, TEXT_WIDTH = 12 };

static int width_of(const di_bench_column *c) {
    int least = c->decimals < 0 ? TEXT_WIDTH : MIN_WIDTH, head = (int)strlen(c->head);
    return head > least ? head : least;
}

static void show_head(const di_bench *b, const char *name, const char *title) {
    printf("\n%s: %s\n", name, title);
    for (int i = 0; i < b->n_columns; i++) {
        const di_bench_column *c = &b->columns[i];
        if (!c->head) continue;
        printf(c->decimals < 0 ? "  %-*s" : "  %*s", width_of(c), c->head);
    }
    putchar('\n');
    fflush(stdout);
}

void di_bench_table(di_bench *b, const char *name, const char *title,
                    const di_bench_column *columns, int n_columns) {
    di_bench_note_end(b);
    b->columns = columns;
    b->n_columns = n_columns;
    b->n_rows = 0;
    di_buffer_printf(&b->tables, "%s\n  \"%s\": [", b->n_tables++ ? "," : "", name);
    if (!b->json) show_head(b, name, title);
}

static void write_number(di_buffer *out, double x) {
    if (isfinite(x)) {
        di_buffer_printf(out, "%.9g", x);
    } else {
        di_buffer_puts(out, "null");
    }
}

static void write_cell(di_buffer *out, const di_bench_cell *cell) {
    if (cell->text) {
        di_lossy_write(out, cell->text, strlen(cell->text));
    } else if (cell->samples) {
        di_buffer_putc(out, '[');
        for (int i = 0; i < cell->n; i++) {
            if (i) di_buffer_puts(out, ", ");
            write_number(out, cell->samples[i]);
        }
        di_buffer_putc(out, ']');
    } else {
        write_number(out, cell->number);
    }
}

static void show_cell(const di_bench_column *c, const di_bench_cell *cell) {
    if (c->decimals < 0) {
        printf("  %-*s", width_of(c), cell->text);
    } else if (isfinite(cell->number)) {
        printf("  %*.*f", width_of(c), c->decimals, cell->number * c->scale);
    } else {
        printf("  %*s", width_of(c), "-");
    }
}

void di_bench_row_of(di_bench *b, const di_bench_cell *cells) {
    di_bench_note_end(b);
    di_buffer_puts(&b->tables, b->n_rows++ ? ",\n    {" : "\n    {");
    for (int i = 0; i < b->n_columns; i++) {
        di_buffer_printf(&b->tables, "%s\"%s\": ", i ? ", " : "", b->columns[i].key);
        write_cell(&b->tables, &cells[i]);
        if (!b->json && b->columns[i].head) show_cell(&b->columns[i], &cells[i]);
    }
    di_buffer_putc(&b->tables, '}');
    if (b->json) return;
    putchar('\n');
    fflush(stdout);
}

void di_bench_table_end(di_bench *b) {
    di_bench_note_end(b);
    di_buffer_puts(&b->tables, "]");
    b->columns = NULL;
}

void di_bench_note(di_bench *b, const char *format, ...) {
    bool terminal = di_terminal_is(stderr);
    double now = di_seconds(), every_s = terminal ? 0.1 : 10;
    if (terminal && !b->noted) every_s = 0; /* nothing stands there */
    if (b->quiet || now - b->last_note < every_s) return;
    b->last_note = now;
    va_list values;
    va_start(values, format);
    if (terminal) fputc('\r', stderr);
    vfprintf(stderr, format, values);
    va_end(values);
    fputs(terminal ? "\033[K" : "\n", stderr);
    fflush(stderr);
    b->noted = terminal;
}

void di_bench_note_end(di_bench *b) {
    if (!b->noted) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    b->noted = false;
}
