/* Replays the chat fuzzer's corpus: every input once in each mode and with several piece sizes. The
 * target aborts where something does not hold. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file.h"

#include "../../fuzz/fuzz_chat.c"

static int replay(const char *path) {
    char *data;
    uint64_t size;
    di_error error;
    assert_int_equal(di_file_read(path, 1 << 20, &data, &size, &error), DI_OK);
    LLVMFuzzerTestOneInput((const uint8_t *)data, (size_t)size);
    static const int heads[] = {0, 1, 2, 3, 4, 5, 24, 25, 252, 253};
    for (size_t i = 0; size > 0 && i < sizeof heads / sizeof *heads; i++) {
        data[0] = (char)heads[i];
        LLVMFuzzerTestOneInput((const uint8_t *)data, (size_t)size);
    }
    free(data);
    return 1;
}

static void corpus(void **state) {
    (void)state;
    DIR *folder = opendir(DI_SOURCE_DIR "/fuzz/corpus/chat");
    assert_non_null(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        di_buffer path = DI_BUFFER_EMPTY;
        di_buffer_printf(&path, "%s/%s", DI_SOURCE_DIR "/fuzz/corpus/chat", entry->d_name);
        n += replay(path.data);
        di_buffer_free(&path);
    }
    closedir(folder);
    print_message("%d inputs\n", n);
    assert_true(n >= 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
