/* Runs a fuzz target over stored inputs without libFuzzer: replay FILE_OR_FOLDER...
 *
 * Folders are read without descending, in any order: an input must not depend on the one before.
 * Each input is an allocation of exactly its size, so that a sanitizer sees a read past its end.
 * Finding no input at all is a failure: a corpus that went missing must not pass.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path, size_t size) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    uint8_t *data = malloc(size ? size : 1);
    int failed = !data || fread(data, 1, size, file) != size;
    fclose(file);
    if (failed) {
        fprintf(stderr, "%s: cannot read %zu bytes\n", path, size);
    } else {
        LLVMFuzzerTestOneInput(data, size);
    }
    free(data);
    return failed;
}

/* Runs one file, or the files of one folder, and counts them; 0 when all could be read. */
static int replay(const char *path, int *n_inputs) {
    struct stat info;
    if (stat(path, &info) != 0) {
        perror(path);
        return 1;
    }
    if (S_ISREG(info.st_mode)) {
        ++*n_inputs;
        return replay_file(path, (size_t)info.st_size);
    }
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) && !failed;) {
        char inner[4096];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof inner || stat(inner, &info) != 0) {
            fprintf(stderr, "%s/%s: cannot be read\n", path, entry->d_name);
            failed = 1;
        } else if (S_ISREG(info.st_mode)) {
            ++*n_inputs;
            failed = replay_file(inner, (size_t)info.st_size);
        }
    }
    closedir(folder);
    return failed;
}

int main(int argc, char **argv) {
    int n_inputs = 0;
    for (int i = 1; i < argc; i++) {
        if (replay(argv[i], &n_inputs)) return 1;
    }
    printf("replayed %d inputs\n", n_inputs);
    return n_inputs == 0;
}
