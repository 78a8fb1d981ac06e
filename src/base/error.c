#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

di_status di_fail_text(di_error *error, di_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error->status = status;
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return status;
}

di_status di_fail_errno_text(di_error *error, int errno_value, const char *format, ...) {
    char what[sizeof error->message];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return di_fail(error, errno_value == ENOMEM ? DI_ERR_MEMORY : DI_ERR_IO, "%.600s: %s", what,
                   strerror(errno_value));
}
