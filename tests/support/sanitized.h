/* Whether this is a sanitizer build, where memory is taken for other purposes, too. */
#ifndef DI_TESTS_SUPPORT_SANITIZED_H
#define DI_TESTS_SUPPORT_SANITIZED_H

#include <stdbool.h>

/* clang says so by features, gcc by macros. */
#ifdef __has_feature
#define BUILT_WITH(feature) __has_feature(feature)
#else
#define BUILT_WITH(feature) 0
#endif

/* Whether races are looked for, at twenty times the cost: what has one thread has none. */
static inline bool is_thread_sanitized(void) {
#if defined(__SANITIZE_THREAD__) || BUILT_WITH(thread_sanitizer)
    return true;
#else
    return false;
#endif
}

static inline bool is_sanitized(void) {
#if defined(__SANITIZE_ADDRESS__) || BUILT_WITH(address_sanitizer) || BUILT_WITH(memory_sanitizer)
    return true;
#else
    return is_thread_sanitized();
#endif
}

#endif
