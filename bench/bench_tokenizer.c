/* Speed of the tokenizer on one core: bench_tokenizer [TOKENIZER_JSON [TEXT]]
 *
 * Loads the tokenizer, then encodes and decodes the text over and over for about four seconds and
 * prints the best and the median pass. Without arguments: the demo model's tokenizer on its
 * English evaluation text, from the root of the tree.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "text/tokenizer.h"

enum { MAX_PASSES = 10000 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *seconds, int n, uint64_t bytes) {
    qsort(seconds, (size_t)n, sizeof *seconds, compare);
    printf("%-8s best %6.1f MB/s, median %6.1f MB/s (%d passes)\n", what,
           (double)bytes / seconds[0] * 1e-6, (double)bytes / seconds[n / 2] * 1e-6, n);
}

static void bench(const di_tokenizer *t, const char *text, uint64_t size) {
    static double encode[MAX_PASSES], decode[MAX_PASSES];
    di_ids ids = {NULL, 0, 0};
    di_buffer back = DI_BUFFER_EMPTY;
    di_error error;
    double end = now_s() + 4;
    int n = 0;
    for (; n < MAX_PASSES && (n < 3 || now_s() < end); n++) {
        double start = now_s();
        ids.size = 0;
        if (di_tokenizer_encode(t, text, (size_t)size, true, &ids, &error) != DI_OK) break;
        double middle = now_s();
        di_buffer_clear(&back);
        if (di_tokenizer_decode(t, ids.data, ids.size, false, &back, &error) != DI_OK) break;
        encode[n] = middle - start;
        decode[n] = now_s() - middle;
    }
    printf("%llu bytes, %zu tokens\n", (unsigned long long)size, ids.size);
    report("encode", encode, n, size);
    report("decode", decode, n, size);
    di_ids_free(&ids);
    di_buffer_free(&back);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "models/demo/tokenizer.json";
    const char *text_path = argc > 2 ? argv[2] : "models/demo/eval/prose.txt";
    di_tokenizer *t;
    di_error error;
    char *text = NULL;
    uint64_t size;
    double start = now_s();
    if (di_tokenizer_load(path, &t, &error) != DI_OK ||
        di_file_read(text_path, 1 << 30, &text, &size, &error) != DI_OK) {
        fprintf(stderr, "bench_tokenizer: %s\n", error.message);
        return 1;
    }
    printf("%s, loaded in %.3f s\n", path, now_s() - start);
    bench(t, text, size);
    free(text);
    di_tokenizer_destroy(t);
    return 0;
}
