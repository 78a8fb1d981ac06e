/* Sleeping on a word of memory, and one turn of a wait that spins: what the team and the queue of a
 * backend are made of. Linux only, within one process. Whoever changes the word wakes; a sleeper
 * looks at what it waits for again after every return, which may be for no reason.
 */
#ifndef DI_BASE_FUTEX_H
#define DI_BASE_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sleeps while *word is `seen`. */
static inline void di_futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void di_futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* One turn of a spinning wait. Now and then it offers the core to others: the one that is waited
 * for may need this very core, which the scheduler likes to do to threads that wake each other. */
static inline void di_spin_turn(int32_t turn) {
    if (turn % 64 == 63) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
