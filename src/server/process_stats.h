/* What the system knows of this process, for /metrics. */
#ifndef DI_SERVER_PROCESS_STATS_H
#define DI_SERVER_PROCESS_STATS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct di_process_stats {
    double cpu_seconds; /* user and system, of all threads */
    double started;     /* Unix time */
    int64_t resident_bytes;
    int64_t open_files, max_files; /* descriptors; the soft limit */
    int64_t other_files;           /* of them, beside connections, once they were */
    bool counted;
} di_process_stats;

/* Start zeroed, and read into the same one again: `started` is found once, for it must not move. False
 * where /proc cannot be read. n_connections: files that come and go while the server runs. Takes some
 * microseconds, however many files are open; the first time on a Linux before 6.2 a pass over them. */
bool di_process_stats_read(di_process_stats *stats, int64_t n_connections);

#endif
