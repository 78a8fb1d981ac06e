#include "server/page.h"

#include <string.h>

const di_page_file *di_page_find(const char *name) {
    for (size_t i = 0; i < di_n_page_files; i++) {
        if (strcmp(di_page_files[i].name, name) == 0) return &di_page_files[i];
    }
    return NULL;
}
