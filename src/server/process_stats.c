#include "server/process_stats.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Fields 22 and 24 of proc(5)'s stat, behind the name, which is in brackets and may have any character. */
static bool read_stat(double *age, int64_t *resident_bytes) {
    char text[1024];
    unsigned long long ticks;
    long pages;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    if (!name_end) return false;
    int n_read = sscanf(name_end + 1,
                        " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                        "%*d %llu %*u %ld",
                        &ticks, &pages);
    if (n_read != 2) return false;
    *age = seconds_of(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK);
    *resident_bytes = (int64_t)pages * sysconf(_SC_PAGESIZE);
    return true;
}

/* By a pass over them. */
static bool count_files(int64_t *out) {
    DIR *folder = opendir("/proc/self/fd");
    int64_t n = 0;
    if (!folder) return false;
    for (const struct dirent *entry; (entry = readdir(folder));) n += entry->d_name[0] != '.';
    closedir(folder);
    *out = n - 1; /* the folder itself was open */
    return true;
}

/* Linux tells the number as the folder's size since 6.2. Before, those beside the connections are counted once, for
 * the loop cannot wait for a pass over ten thousand. */
static bool read_files(di_process_stats *stats, int64_t n_connections) {
    struct stat folder;
    if (stat("/proc/self/fd", &folder) != 0) return false;
    stats->open_files = folder.st_size;
    if (folder.st_size > 0) return true;
    if (!stats->counted) {
        if (!count_files(&stats->other_files)) return false;
        stats->other_files -= n_connections;
        stats->counted = true;
    }
    stats->open_files = stats->other_files + n_connections;
    return true;
}

bool di_process_stats_read(di_process_stats *stats, int64_t n_connections) {
    struct rlimit limit;
    double age;
    if (!read_stat(&age, &stats->resident_bytes) || !read_files(stats, n_connections)) return false;
    if (stats->started == 0) stats->started = seconds_of(CLOCK_REALTIME) - age;
    stats->cpu_seconds = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    stats->max_files = (int64_t)limit.rlim_cur;
    return true;
}
