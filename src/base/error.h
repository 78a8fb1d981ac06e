/* Errors: the status codes of the public header, and the helpers that fill a di_error.
 *
 * A function that can fail returns di_status and takes a di_error * (never NULL) as its last
 * argument. The function nearest the cause fills it with what was being done, to which file,
 * tensor or field, and what to do about it; callers pass it on untouched. Thread-safe: no globals.
 */
#ifndef DI_BASE_ERROR_H
#define DI_BASE_ERROR_H

#include "deepinfer.h"

/* Fills *error and returns `status`, so that a failure is one line: return di_fail(e, ...). */
di_status di_fail(di_error *error, di_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with ": strerror(errno_value)" appended. */
di_status di_fail_errno(di_error *error, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Passes a failure to the caller. Only where nothing is owned yet; otherwise `goto fail`. */
#define DI_TRY(expr)                                                                               \
    do {                                                                                           \
        di_status try_status_ = (expr);                                                            \
        if (try_status_ != DI_OK) return try_status_;                                              \
    } while (0)

/* The same for functions with one exit: needs `di_status status` and a label `done`. */
#define DI_TRY_DONE(expr)                                                                          \
    do {                                                                                           \
        if ((status = (expr)) != DI_OK) goto done;                                                 \
    } while (0)

#endif
