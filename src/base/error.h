/* Errors: the status codes of the public header, and the helpers that fill a di_error.
 *
 * A function that can fail returns di_status and takes a di_error * (never NULL) as its last
 * argument. The function nearest the cause fills it with what was being done, to which file,
 * tensor or field, and what to do about it; callers pass it on untouched. Thread-safe: no globals.
 */
#ifndef DI_BASE_ERROR_H
#define DI_BASE_ERROR_H

#include "deepinfer.h"

/* Fills *error and returns `status`, so that a failure is one line: return di_fail(e, ...).
 * A macro around the function so that the compiler sees which value comes back: it then knows that
 * what a caller gets on success alone is not read after a failure. `status` is evaluated twice. */
#define di_fail(error, status, ...) di_fail_known(status, di_fail_text(error, status, __VA_ARGS__))

/* The same with ": strerror(errno_value)" appended; DI_ERR_MEMORY for ENOMEM, else DI_ERR_IO. */
#define di_fail_errno(error, errno_value, ...)                                                     \
    di_fail_system(di_fail_errno_text(error, errno_value, __VA_ARGS__))

/* What the macros call. */
di_status di_fail_text(di_error *error, di_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
di_status di_fail_errno_text(di_error *error, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline di_status di_fail_known(di_status status, di_status same) {
    (void)same;
    return status;
}
static inline di_status di_fail_system(di_status status) {
    return status == DI_ERR_MEMORY ? DI_ERR_MEMORY : DI_ERR_IO;
}

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
