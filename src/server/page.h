/* The page to talk to the model: the files of page/, which the build puts into the program
 * (cmake/page.cmake). It speaks to /v1/chat/completions as every client does.
 */
#ifndef DI_SERVER_PAGE_H
#define DI_SERVER_PAGE_H

#include <stddef.h>

/* What the page may load, ask and be part of: of its own origin, and nothing inline, so that what a
 * model writes cannot become a program in a reader's browser. */
#define DI_PAGE_POLICY                                                                              \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

typedef struct di_page_file {
    const char *name, *type;
    const char *etag; /* quoted */
    const unsigned char *data;
    size_t size;
} di_page_file;

extern const di_page_file di_page_files[];
extern const size_t di_n_page_files;

/* NULL: there is no file of that name. */
const di_page_file *di_page_find(const char *name);

#endif
