/* Whether this is a sanitizer build, where memory is taken for other purposes, too. */
#ifndef DI_TESTS_SUPPORT_SANITIZED_H
#define DI_TESTS_SUPPORT_SANITIZED_H

#include <stdbool.h>

static inline bool is_sanitized(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

/* Whether races are looked for, at twenty times the cost: what has one thread has none. */
static inline bool is_thread_sanitized(void) {
#if defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

#endif
