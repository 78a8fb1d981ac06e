/* deepinfer: one program, many verbs. This file finds the verb, parses its options, and turns its
 * status into a line on stderr and an exit code.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/settings_file.h"
#include "cli/terminal.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int exit_code(di_status status) {
    switch (status) {
    case DI_OK: return 0;
    case DI_ERR_USAGE: return EXIT_USAGE;
    case DI_ERR_CANCELLED: {
        int ending = di_interrupt_ending();
        return 128 + (ending ? ending : SIGINT);
    }
    default: return EXIT_FAILED;
    }
}

static int print_and_free(di_buffer *text, FILE *to) {
    if (!text->failed) fwrite(text->data, 1, text->size, to);
    int code = text->failed ? EXIT_FAILED : 0;
    di_buffer_free(text);
    return code;
}

/* Output that could not be written (disk full) must not end in success. The reason is known only
 * when it is this flush that fails. */
static di_status flush_output(di_error *error) {
    if (fflush(stdout) != 0) return di_fail_errno(error, errno, "cannot write to stdout");
    if (ferror(stdout)) return di_fail(error, DI_ERR_IO, "cannot write to stdout");
    return DI_OK;
}

/* Without these a file or a pipe of ours would take the place of a standard stream that is closed.
 * The way is the wrong one, so that reading and writing fail as they would have. */
static void open_standard_streams(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd) _exit(EXIT_FAILED);
    }
}

/* For output that belongs to no verb. */
static int print_whole(di_buffer *text) {
    di_error error;
    int code = print_and_free(text, stdout);
    if (code == 0 && flush_output(&error) != DI_OK) {
        fprintf(stderr, "deepinfer: %s\n", error.message);
        code = EXIT_FAILED;
    }
    return code;
}

static int run_verb(const di_verb *verb, int argc, char **argv) {
    di_error error = {DI_OK, ""};
    di_args args;
    di_settings settings;
    memset(&args, 0, sizeof args);
    di_status status = di_settings_read(verb, argc, argv, &settings, &error);
    if (status == DI_OK) {
        status = di_args_parse(verb, settings.argc, settings.argv, &args, &error);
    }
    if (status == DI_OK) {
        if (args.values[DI_OPT_HELP].flag) {
            di_buffer text = DI_BUFFER_EMPTY;
            di_help_verb(verb, &text);
            print_and_free(&text, stdout);
        } else {
            status = verb->run(&args, &error);
        }
    }
    if (status != DI_OK) di_settings_locate(&settings, &error);
    di_args_free(&args);
    di_settings_free(&settings);
    di_error flush_error = {DI_OK, ""};
    di_status flushed = flush_output(&flush_error);
    if (status == DI_OK && flushed != DI_OK) {
        status = flushed;
        error = flush_error;
    }
    if (status != DI_OK) fprintf(stderr, "deepinfer %s: %s\n", verb->name, error.message);
    return exit_code(status);
}

int main(int argc, char **argv) {
    di_buffer text = DI_BUFFER_EMPTY;
    open_standard_streams();
    if (argc < 2) {
        di_help_overview(&text);
        print_and_free(&text, stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        di_help_overview(&text);
        return print_whole(&text);
    }
    if (strcmp(argv[1], "--version") == 0) {
        di_buffer_printf(&text, "deepinfer %s\n", di_version());
        return print_whole(&text);
    }
    const di_verb *verb = di_verb_find(argv[1]);
    if (!verb) {
        fprintf(stderr, "deepinfer: unknown %s '%.60s'; 'deepinfer help' lists the verbs\n",
                argv[1][0] == '-' ? "option" : "verb", argv[1]);
        return EXIT_USAGE;
    }
    return run_verb(verb, argc - 2, argv + 2);
}
