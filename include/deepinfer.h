/* deepinfer: the public interface of libdeepinfer. */
#ifndef DEEPINFER_H
#define DEEPINFER_H

#ifdef __cplusplus
extern "C" {
#endif

/* What a call came to. 0 is success; everything else comes with a message in di_error. */
typedef enum di_status {
    DI_OK = 0,
    DI_ERR_USAGE = -1,       /* an option or argument is wrong: the caller can mend it */
    DI_ERR_INVALID = -2,     /* a file or a text is not what it must be */
    DI_ERR_IO = -3,          /* the system refused to open, read or write */
    DI_ERR_MEMORY = -4,      /* not enough memory, or not enough allowed */
    DI_ERR_LIMIT = -5,       /* longer than the context, more than a slot or page count */
    DI_ERR_UNSUPPORTED = -6, /* valid, but this build or machine cannot do it */
    DI_ERR_CANCELLED = -7    /* the caller asked to stop */
} di_status;

/* One failure, in one line fit for a person: what was being done, where, what to do about it. */
typedef struct di_error {
    di_status status;
    char message[1024];
} di_error;

#ifdef __cplusplus
}
#endif

#endif
