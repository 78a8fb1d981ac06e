/* bench_gpu: the command's options. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
#include "bench_gpu.h"

static const char help[] =
    "bench_gpu [options]: the forward pass of full-width layers against the device's ceilings\n"
    "\n"
    "  --sections a,b,...         of start, decode, idle, prefill, verify; default all. The\n"
    "                             ceilings are always measured: everything is held against them,\n"
    "                             and 'ceilings' is a section of nothing else\n"
    "  --backend cuda|cpu         default cuda\n"
    "  --numerics float|release   default release\n"
    "  --config NAME|FILE         released (default), tiny, or a config.json\n"
    "  --set KEY=VALUE            a field of it; may be given several times\n"
    "  --layers N | I,J,...       a run of N layers, chosen for its mix of roles, or these layers;\n"
    "                             default: on a GPU a run of as many as fit, else all\n"
    "  --draft-layers N           default: as many as the config has\n"
    "  --experts N                a layer; default: as many as the config has\n"
    "  --engram-rows N            about so many rows a table; default 8000000; 0: as the config\n"
    "                             says\n"
    "  --weights copied           one set of random bytes crosses to the device, tensors are\n"
    "                             copies of it at shifted places; of packed matrices of a shape\n"
    "                             the first few cross, the others are copies (default)\n"
    "            uploaded         the same, but every tensor crosses from host memory\n"
    "            own              every tensor has host bytes of its own, which are then bound\n"
    "  --context N                tokens of each sequence before decode and verify; default 4096,\n"
    "                             or what the model has room for\n"
    "  --rows N,N,...             rows of decode steps; default 1,8,32,64,256\n"
    "  --prompt N                 tokens of the prefill; default 8192, or what the model takes\n"
    "  --chunk N                  of the prefill; default 2048\n"
    "  --repeats N                measured steps each; default 20\n"
    "  --threads N, --gpu-device N, --seed N\n"
    "\n"
    "Figures are medians with their quartiles.\n";

_Noreturn void refuse(const char *format, ...) {
    va_list args;
    fflush(stdout);
    fprintf(stderr, "bench_gpu: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(2);
}

/* ---- Values ---- */

static int64_t number(const char *name, const char *text, int64_t least, int64_t most) {
    uint64_t value;
    const char *end;
    if (!di_read_digits(text, (uint64_t)least, (uint64_t)most, &value, &end) || *end)
        refuse("%s: '%.60s' is no whole number from %" PRId64 " to %" PRId64, name, text, least,
               most);
    return (int64_t)value;
}

/* Which of the words, separated by bars, the n characters at text are. */
static int choice(const char *name, const char *text, size_t n, const char *words) {
    const char *word = words;
    for (int i = 0;; i++) {
        size_t m = strcspn(word, "|");
        if (m == n && memcmp(word, text, n) == 0) return i;
        if (!word[m]) break;
        word += m + 1;
    }
    refuse("%s: '%.*s' is none of %s", name, n < 60 ? (int)n : 60, text, words);
}

static int word(const char *name, const char *text, const char *words) {
    return choice(name, text, strlen(text), words);
}

/* Numbers separated by commas; how many. */
static int32_t read_list(const char *name, const char *text, int32_t least, int32_t most,
                         int32_t *out, int32_t room) {
    int32_t n = 0;
    for (const char *at = text, *end;; at = end + 1) {
        uint64_t value;
        bool fine = di_read_digits(at, (uint64_t)least, (uint64_t)most, &value, &end) &&
                    (!*end || *end == ',');
        if (!fine || n == room)
            refuse("%s: '%.60s' is no list of at most %d whole numbers from %d to %d, separated "
                   "by commas",
                   name, text, (int)room, (int)least, (int)most);
        out[n++] = (int32_t)value;
        if (!*end) return n;
    }
}

/* ---- Options ---- */

static void read_layers(bench *b, const char *text) {
    const char *name = "--layers";
    b->n_listed = 0;
    if (!strchr(text, ',')) {
        b->layers = (int32_t)number(name, text, 1, DI_MAX_LAYERS);
        return;
    }
    b->n_listed = read_list(name, text, 0, DI_MAX_LAYERS - 1, b->listed, DI_MAX_LAYERS);
    b->layers = b->n_listed;
}

bool wants(const bench *b, const char *section) {
    const char *at = b->sections;
    size_t n = strlen(section);
    while (*at) {
        size_t m = strcspn(at, ",");
        if (m == n && memcmp(at, section, n) == 0) return true;
        at += m + (at[m] == ',');
    }
    return false;
}

static void check_sections(const char *text) {
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        (void)choice("--sections", at, n, "ceilings|start|decode|idle|prefill|verify");
        at += n;
        if (!*at) return;
    }
}

static bool read_number(bench *b, const char *name, const char *value) {
    static const struct {
        const char *name;
        size_t at;
        int32_t least, most;
    } numbers[] = {
        {"--draft-layers", offsetof(bench, draft_layers), 0, DI_MAX_LAYERS},
        {"--experts", offsetof(bench, experts), 1, 65536},
        {"--threads", offsetof(bench, threads), 0, 1024},
        {"--gpu-device", offsetof(bench, device), 0, 1023},
        {"--context", offsetof(bench, context_tokens), 1, 1 << 20},
        {"--prompt", offsetof(bench, prompt_tokens), 1, 1 << 20},
        {"--chunk", offsetof(bench, chunk), 1, 65536},
        {"--repeats", offsetof(bench, repeats), 1, MAX_REPEATS},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        int32_t read = (int32_t)number(name, value, numbers[i].least, numbers[i].most);
        memcpy((char *)b + numbers[i].at, &read, sizeof read);
        return true;
    }
    return false;
}

static bool read_words(bench *b, const char *name, const char *value) {
    if (strcmp(name, "--sections") == 0) {
        check_sections(value);
        b->sections = value;
    } else if (strcmp(name, "--backend") == 0) {
        b->cuda = word(name, value, "cuda|cpu") == 0;
    } else if (strcmp(name, "--numerics") == 0) {
        b->numerics = word(name, value, "release|float") ? DI_NUMERICS_FLOAT : DI_NUMERICS_RELEASE;
    } else if (strcmp(name, "--weights") == 0) {
        b->weights = (weights_mode)word(name, value, "copied|uploaded|own");
    } else if (strcmp(name, "--config") == 0) {
        b->config_name = value;
    } else if (strcmp(name, "--set") == 0) {
        if (b->n_set == MAX_SET) refuse("--set: it may be given %d times at most", (int)MAX_SET);
        b->set[b->n_set++] = value;
    } else {
        return false;
    }
    return true;
}

/* False when there is no such option. */
static bool read_option(bench *b, const char *name, const char *value) {
    if (read_number(b, name, value) || read_words(b, name, value)) return true;
    if (strcmp(name, "--engram-rows") == 0) {
        b->engram_rows = number(name, value, 0, INT64_C(1) << 40);
    } else if (strcmp(name, "--seed") == 0) {
        b->seed = (uint64_t)number(name, value, 0, INT64_MAX);
    } else if (strcmp(name, "--rows") == 0) {
        b->n_sizes = read_list(name, value, 1, MAX_BATCH, b->sizes, MAX_SIZES);
    } else if (strcmp(name, "--layers") == 0) {
        read_layers(b, value);
    } else {
        return false;
    }
    return true;
}

void options_read(bench *b, int argc, char **argv) {
    *b = (bench){.config_name = "released",
                 .sections = "start,decode,idle,prefill,verify",
                 .cuda = true,
                 .numerics = DI_NUMERICS_RELEASE,
                 .draft_layers = -1,
                 .chunk = 2048,
                 .repeats = 20,
                 .n_sizes = 5,
                 .sizes = {1, 8, 32, 64, 256},
                 .engram_rows = 8000000,
                 .seed = 1,
                 .json = DI_BUFFER_EMPTY};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            printf("%s", help);
            exit(0);
        }
        bool last = i + 1 == argc;
        if (!read_option(b, argv[i], last ? "" : argv[i + 1]))
            refuse("there is no option '%.60s': see --help", argv[i]);
        if (last) refuse("%s: it needs a value", argv[i]);
    }
}

static int32_t at_most(int64_t usual, int64_t most) {
    return (int32_t)(usual < most ? usual : most > 0 ? most : 1);
}

void options_settle(bench *b, const di_config *config) {
    bench with = *b;
    int64_t most = config->max_position_embeddings / DI_PAGE_TOKENS * DI_PAGE_TOKENS, room = 0;
    with.config = config;
    if (wants(b, "start")) room = START_ROOM;
    if (wants(b, "decode") && decode_room(&with) > room) room = decode_room(&with);
    if (wants(b, "verify") && verify_room(&with) > room) room = verify_room(&with);
    if (b->context_tokens == 0) b->context_tokens = at_most(4096, most - room);
    if (b->prompt_tokens == 0) b->prompt_tokens = at_most(8192, most);
}
