/* The command line, as the system has it: that is what was typed. */
#include "cli/command_line.h"

#include <stdio.h>

#include "base/lossy.h"

void di_command_line_write(di_buffer *out) {
    char text[4096];
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t n = file ? fread(text, 1, sizeof text, file) : 0;
    if (file) fclose(file);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\0') text[i] = ' ';
    }
    di_lossy_write(out, text, n > 0 ? n - 1 : 0);
}
