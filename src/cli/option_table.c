/* Every option of every verb, once. See cli.h for the fields; help.c, manual.c, completion.c and
 * option_parse.c read this table.
 */
#include "cli/cli.h"

#define RUN DI_VERB_BIT(DI_VERB_RUN)
#define CHAT DI_VERB_BIT(DI_VERB_CHAT)
#define SCORE DI_VERB_BIT(DI_VERB_SCORE)
#define BATCH DI_VERB_BIT(DI_VERB_BATCH)
#define SERVE DI_VERB_BIT(DI_VERB_SERVE)
#define BENCH DI_VERB_BIT(DI_VERB_BENCH)
#define EVAL DI_VERB_BIT(DI_VERB_EVAL)
#define TOKENIZE DI_VERB_BIT(DI_VERB_TOKENIZE)
#define INSPECT DI_VERB_BIT(DI_VERB_INSPECT)
#define SYNTH DI_VERB_BIT(DI_VERB_SYNTH)
#define HELP DI_VERB_BIT(DI_VERB_HELP)
#define REQUESTS (BATCH | SERVE | BENCH | EVAL) /* verbs with many requests at a time */
#define NETWORK (RUN | CHAT | SCORE | REQUESTS) /* verbs that load weights */
#define ALL (NETWORK | TOKENIZE | INSPECT | SYNTH | HELP)

#define FROM_MODEL(text) "the model's generation_config.json, else " text

/* clang-format off */
const di_option di_options[DI_N_OPTIONS] = {
    [DI_OPT_BACKEND] = {.name = "backend", .type = DI_TYPE_CHOICE, .group = DI_GROUP_MACHINE,
        .value = "NAME", .choices = "auto|cpu|cuda|ref", .default_value = "auto",
        .verbs = NETWORK | INSPECT,
        .help = "What computes: cpu is the fast path (AVX2), cuda a GPU (Hopper or later), ref the "
                "scalar twins in double precision, which define the results and are very slow. auto "
                "takes the GPU where there is one that this build can use and the model fits it, "
                "else cpu, and says on stderr which and why."},
    [DI_OPT_NUMERICS] = {.name = "numerics", .type = DI_TYPE_CHOICE, .group = DI_GROUP_MACHINE,
        .value = "NAME", .choices = "float|release", .default_value = DI_DEFAULT_NUMERICS,
        .verbs = NETWORK | INSPECT,
        .help = "release rounds where the released code rounds; float rounds nothing but what the "
                "caches store."},
    [DI_OPT_THREADS] = {.name = "threads", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .min = 0, .max = 1024, .default_value = "0", .verbs = NETWORK | INSPECT,
        .help = "Threads that compute; 0 takes every core this process may use. The answer does "
                "not depend on it."},
    [DI_OPT_MEMORY] = {.name = "memory", .type = DI_TYPE_SIZE, .group = DI_GROUP_MACHINE,
        .value = "BYTES", .min = 1048576, .max = 1125899906842624.0,
        .default_note = "no bound", .verbs = NETWORK,
        .help = "Upper bound of memory, weights included. Taken at start and kept; weights that do "
                "not fit beside the rest are read again layer by layer. With a GPU: of host memory, "
                "without what the driver takes."},
    [DI_OPT_GPU_MEMORY] = {.name = "gpu-memory", .type = DI_TYPE_SIZE, .group = DI_GROUP_MACHINE,
        .value = "BYTES", .min = 1048576, .max = 1125899906842624.0,
        .default_note = "what is free, less 512M or 1 % of the GPU's, whichever is more",
        .verbs = NETWORK | INSPECT,
        .help = "Upper bound of the GPU's memory: weights, state and workspace. Engram tables that "
                "are larger than every other tensor stay in host memory."},
    [DI_OPT_GPU_DEVICE] = {.name = "gpu-device", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .min = 0, .max = 1023, .default_value = "0", .verbs = NETWORK | INSPECT,
        .help = "Which GPU, by the number that CUDA gives it."},
    [DI_OPT_GPU_LAYERS] = {.name = "gpu-layers", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .min = 0, .max = 1000, .default_note = "all, or as many as fit",
        .verbs = NETWORK | INSPECT,
        .help = "Layers, from the first on, that are whole on the GPU. Of the others the CPU computes "
                "the routed experts, from host memory. More than there are: all."},
    [DI_OPT_CONTEXT] = {.name = "context", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .unit = "tokens", .min = 1, .max = 1073741824.0,
        .default_note = "the model's, at most 32768; bench: what a measurement needs",
        .verbs = NETWORK | INSPECT,
        .help = "Longest sequence, prompt and answer together."},
    [DI_OPT_CHUNK] = {.name = "chunk", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .unit = "tokens", .min = 1, .max = 65536, .default_value = "256",
        .verbs = NETWORK | INSPECT,
        .help = "Prompt tokens computed in one step. More is faster and takes more memory; the "
                "answer does not depend on it."},
    [DI_OPT_BATCH] = {.name = "batch", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .unit = "sequences", .min = 1, .max = 1048576,
        .default_value = "1", .verbs = INSPECT,
        .help = "Sequences held at the same time: one in run and chat, the --max-batch of batch, "
                "bench and eval."},
    [DI_OPT_DEEP] = {.name = "deep", .type = DI_TYPE_FLAG, .group = DI_GROUP_MACHINE,
        .verbs = INSPECT,
        .help = "Read all scales, also those of routed experts and Engram tables, and refuse one "
                "that is NaN. Takes minutes for a large checkpoint. Smaller ones (256M of scales) "
                "are checked whenever they are loaded."},
    [DI_OPT_MAX_BATCH] = {.name = "max-batch", .type = DI_TYPE_INT, .group = DI_GROUP_MACHINE,
        .value = "N", .unit = "sequences", .min = 1, .max = 4096, .default_value = "16",
        .verbs = REQUESTS,
        .help = "Answers computed at the same time. A step has at least so many rows, whatever "
                "--chunk says. The answers do not depend on it. In bench, for latency alone."},
    [DI_OPT_REPLAY] = {.name = "replay", .type = DI_TYPE_CHOICE, .group = DI_GROUP_MACHINE,
        .value = "MODE", .choices = "exact|stable|bounded", .default_value = "exact",
        .verbs = RUN | CHAT | REQUESTS,
        .help = "How the windows behind a cached beginning are made. exact gives the bits of a "
                "request that runs alone. stable and bounded compute less and give other answers: "
                "stable the same ones whatever is cached, bounded such as may depend on where a "
                "cached beginning ends."},
    [DI_OPT_PREFIX_CACHE] = {.name = "prefix-cache", .type = DI_TYPE_CHOICE,
        .group = DI_GROUP_MACHINE, .value = "on|off", .choices = "on|off", .default_value = "on",
        .verbs = RUN | CHAT | REQUESTS,
        .help = "Prompts that begin alike are read once. In chat, a conversation goes on from what "
                "is there of it."},
    [DI_OPT_WINDOW_CACHE] = {.name = "window-cache", .type = DI_TYPE_SIZE,
        .group = DI_GROUP_MACHINE, .value = "BYTES", .min = 0, .max = 1125899906842624.0,
        .default_value = "256M",
        .default_note = "256M; chat: 32M, at most a 16th of --memory; run, eval --compare: 0",
        .verbs = RUN | CHAT | REQUESTS,
        .help = "Memory for snapshots of windows, by which a cached beginning goes on at once; "
                "part of --memory."},
    [DI_OPT_SPEC] = {.name = "spec", .type = DI_TYPE_CHOICE, .group = DI_GROUP_MACHINE,
        .value = "MODE", .choices = "off|fixed|scheduled",
        .default_note = "scheduled where the model has draft layers; bench: off, but in latency",
        .verbs = RUN | CHAT | REQUESTS | INSPECT,
        .help = "Drafts of the model's own draft layers, verified in the step that makes them: "
                "fixed takes all, scheduled as many as pay."},
    [DI_OPT_SPEC_SAMPLING] = {.name = "spec-sampling", .type = DI_TYPE_CHOICE,
        .group = DI_GROUP_MACHINE, .value = "MODE", .choices = "coupled|reject",
        .default_value = "coupled", .verbs = RUN | CHAT | REQUESTS,
        .help = "What a sampled draft must be to stand. coupled gives the answer that there would "
                "be without drafts; reject another sample of the same distribution, not repeatable "
                "from the seed, for how many drafts are verified depends on time and company. In "
                "bench, for latency alone."},
    [DI_OPT_PROFILE_STEPS] = {.name = "profile-steps", .type = DI_TYPE_FLAG,
        .group = DI_GROUP_MACHINE, .verbs = RUN | CHAT | REQUESTS,
        .help = "Measure at start what steps cost, for --spec scheduled, instead of learning it "
                "on the way."},

    [DI_OPT_SYSTEM] = {.name = "system", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "TEXT", .default_note = "no system message", .verbs = RUN | CHAT,
        .help = "System message at the head of the conversation."},
    [DI_OPT_THINKING] = {.name = "thinking", .type = DI_TYPE_SWITCH, .group = DI_GROUP_PROMPT,
        .default_value = "yes", .verbs = RUN | CHAT,
        .help = "Let the model think before it answers."},
    [DI_OPT_EFFORT] = {.name = "effort", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "LEVEL", .default_value = "high", .verbs = RUN | CHAT,
        .help = "How thoroughly to think: minimal or low (50), medium, high or xhigh (75), max or "
                "ultra (100), or a number from 1 to 100; none turns thinking off."},
    [DI_OPT_RAW] = {.name = "raw", .type = DI_TYPE_FLAG, .group = DI_GROUP_PROMPT, .verbs = RUN,
        .conflicts = "system|thinking|effort",
        .help = "The prompt is rendered already: no chat template, only the begin token is put "
                "first if it is missing. The output is printed as it comes."},
    [DI_OPT_MATCH_ADDED] = {.name = "match-added", .type = DI_TYPE_SWITCH,
        .group = DI_GROUP_PROMPT, .default_value = "yes", .verbs = RUN | SCORE | TOKENIZE,
        .help = "Added tokens spelled out in a rendered text become their ids; without it all text "
                "is ordinary. In run it concerns --raw prompts."},
    [DI_OPT_SHOW_PROMPT] = {.name = "show-prompt", .type = DI_TYPE_FLAG, .group = DI_GROUP_PROMPT,
        .verbs = RUN, .help = "Print the rendered prompt to stderr before the answer."},

    [DI_OPT_TEMPERATURE] = {.name = "temperature", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SAMPLING, .value = "X", .min = 0, .max = 100,
        .default_note = FROM_MODEL("1") "; eval: 0", .verbs = RUN | CHAT | EVAL,
        .help = "Higher is more varied; 0 always takes the most likely token."},
    [DI_OPT_TOP_K] = {.name = "top-k", .type = DI_TYPE_INT, .group = DI_GROUP_SAMPLING,
        .value = "N", .min = 0, .max = 2147483647.0, .default_note = FROM_MODEL("0"),
        .verbs = RUN | CHAT, .help = "Sample from the N most likely tokens; 0 is off."},
    [DI_OPT_TOP_P] = {.name = "top-p", .type = DI_TYPE_REAL, .group = DI_GROUP_SAMPLING,
        .value = "X", .min = 0, .max = 1, .default_note = FROM_MODEL("0.95"), .verbs = RUN | CHAT,
        .help = "Sample from the fewest tokens whose probabilities reach X; 1 is off."},
    [DI_OPT_MIN_P] = {.name = "min-p", .type = DI_TYPE_REAL, .group = DI_GROUP_SAMPLING,
        .value = "X", .min = 0, .max = 1, .default_value = "0", .verbs = RUN | CHAT,
        .help = "Leave out tokens less than X times as likely as the likeliest; 0 is off."},
    [DI_OPT_REPETITION_PENALTY] = {.name = "repetition-penalty", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SAMPLING, .value = "X", .min = 0.01, .max = 100,
        .default_note = FROM_MODEL("1"), .verbs = RUN | CHAT,
        .help = "Divides the positive logits of tokens in prompt or answer, multiplies the "
                "negative ones; 1 is off."},
    [DI_OPT_PRESENCE_PENALTY] = {.name = "presence-penalty", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SAMPLING, .value = "X", .min = -100, .max = 100, .default_value = "0",
        .verbs = RUN | CHAT, .help = "Taken once from the logit of every token in the answer."},
    [DI_OPT_FREQUENCY_PENALTY] = {.name = "frequency-penalty", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SAMPLING, .value = "X", .min = -100, .max = 100, .default_value = "0",
        .verbs = RUN | CHAT,
        .help = "Taken from a token's logit for every time it stands in the answer."},
    [DI_OPT_LOGIT_BIAS] = {.name = "logit-bias", .type = DI_TYPE_LIST, .group = DI_GROUP_SAMPLING,
        .value = "ID=X", .default_note = "none", .verbs = RUN | CHAT,
        .help = "Added to the logit of one token, X from -1000 to 1000. May be given several "
                "times."},
    [DI_OPT_SEED] = {.name = "seed", .type = DI_TYPE_SEED, .group = DI_GROUP_SAMPLING,
        .value = "N", .default_note = "drawn for each run, and reported; synth, bench, eval: 0",
        .verbs = RUN | CHAT | BATCH | BENCH | EVAL | SYNTH,
        .help = "The same seed and options give the same result, but for --spec-sampling reject "
                "and --replay bounded. In batch, requests without a seed derive theirs from it and "
                "their custom_id."},
    [DI_OPT_MAX_TOKENS] = {.name = "max-tokens", .type = DI_TYPE_INT, .group = DI_GROUP_SAMPLING,
        .value = "N", .unit = "tokens", .min = 1, .max = 1073741824.0,
        .default_note = "until the answer ends or the context is full; eval: 512; bench: 128, in "
                        "latency 32",
        .verbs = RUN | CHAT | BENCH | EVAL,
        .help = "Longest answer, thinking included."},
    [DI_OPT_STOP] = {.name = "stop", .type = DI_TYPE_LIST, .group = DI_GROUP_SAMPLING,
        .value = "TEXT", .default_note = "none", .verbs = RUN | CHAT,
        .help = "End the answer before this text; thinking is not searched. May be given several "
                "times."},

    [DI_OPT_INPUT] = {.name = "input", .letter = 'i', .type = DI_TYPE_FILE,
        .group = DI_GROUP_PROMPT, .value = "FILE", .default_note = "must be given; bench: made up",
        .verbs = BATCH | BENCH,
        .help = "The requests, one JSON object a line. - reads stdin. In bench, those of the "
                "latency scenario."},
    [DI_OPT_OUTPUT] = {.name = "output", .letter = 'o', .type = DI_TYPE_FILE,
        .group = DI_GROUP_OUTPUT, .value = "FILE", .default_note = "must be given", .verbs = BATCH,
        .help = "The results. A file that has some already is gone on with."},

    [DI_OPT_HOST] = {.name = "host", .type = DI_TYPE_TEXT, .group = DI_GROUP_SERVER,
        .value = "ADDRESS", .default_value = "127.0.0.1", .verbs = SERVE,
        .help = "Address to listen on. The default is for this machine alone; 0.0.0.0 is for every "
                "one that reaches it."},
    [DI_OPT_PORT] = {.name = "port", .letter = 'p', .type = DI_TYPE_INT, .group = DI_GROUP_SERVER,
        .value = "N", .min = 0, .max = 65535, .default_value = "8000", .verbs = SERVE,
        .help = "Port to listen on; 0 takes one that is free, and says which."},
    [DI_OPT_NAME] = {.name = "name", .type = DI_TYPE_LIST, .group = DI_GROUP_SERVER,
        .value = "NAME", .default_note = "MODEL, its last part, and the names of DeepSeek's service",
        .verbs = SERVE,
        .help = "What requests may call the model; the first stands in answers to those that name "
                "none. May be given several times."},
    [DI_OPT_ANY_NAME] = {.name = "any-name", .type = DI_TYPE_FLAG, .group = DI_GROUP_SERVER,
        .verbs = SERVE, .help = "Requests may call the model what they like."},
    [DI_OPT_API_KEYS] = {.name = "api-keys", .type = DI_TYPE_FILE, .group = DI_GROUP_SERVER,
        .value = "FILE", .default_note = "no key is asked for", .verbs = SERVE,
        .help = "Only who has a key of this file may ask: lines of KEY NAME [concurrency=N] [rpm=N], "
                "# begins a comment. SIGHUP reads it again."},
    [DI_OPT_CORS] = {.name = "cors", .type = DI_TYPE_TEXT, .group = DI_GROUP_SERVER,
        .value = "ORIGINS", .default_note = "none", .verbs = SERVE,
        .help = "Web pages of these origins may ask, separated by commas; * is all of them."},
    [DI_OPT_PAGE] = {.name = "page", .type = DI_TYPE_SWITCH, .group = DI_GROUP_SERVER,
        .default_value = "yes", .verbs = SERVE, .help = "A page to talk to, at /."},
    [DI_OPT_MAX_QUEUE] = {.name = "max-queue", .type = DI_TYPE_INT, .group = DI_GROUP_SERVER,
        .value = "N", .unit = "answers", .min = 0, .max = 1000000, .default_value = "1024",
        .verbs = SERVE,
        .help = "Answers that may wait beside --max-batch that are computed; what comes then is "
                "told to come back (429)."},
    [DI_OPT_MAX_CONNECTIONS] = {.name = "max-connections", .type = DI_TYPE_INT,
        .group = DI_GROUP_SERVER, .value = "N", .min = 1, .max = 1000000,
        .default_value = "16384", .verbs = SERVE, .help = "Open connections; more are closed at once."},
    [DI_OPT_MAX_BODY] = {.name = "max-body", .type = DI_TYPE_SIZE, .group = DI_GROUP_SERVER,
        .value = "BYTES", .min = 1024, .max = 1073741824.0, .default_value = "32M",
        .verbs = SERVE, .help = "Largest request."},
    [DI_OPT_MAX_UNSENT] = {.name = "max-unsent", .type = DI_TYPE_SIZE, .group = DI_GROUP_SERVER,
        .value = "BYTES", .min = 1024, .max = 1099511627776.0, .default_value = "1G",
        .verbs = SERVE,
        .help = "Memory for all answers that wait for their readers; where these need more, the one "
                "for whom most is kept is given up."},
    [DI_OPT_RESPONSE_STORE] = {.name = "response-store", .type = DI_TYPE_SIZE,
        .group = DI_GROUP_SERVER, .value = "BYTES", .min = 0, .max = 1099511627776.0,
        .default_value = "64M", .verbs = SERVE,
        .help = "Memory for responses that clients may go on from by previous_response_id, unless "
                "they say store false. What nobody went on from for longest goes first; 0 keeps none."},
    [DI_OPT_KEEP_ALIVE] = {.name = "keep-alive", .type = DI_TYPE_REAL, .group = DI_GROUP_SERVER,
        .value = "X", .unit = "seconds", .min = 0.1, .max = 86400, .default_value = "10",
        .verbs = SERVE,
        .help = "An answer that has nothing to say for so long sends a comment, or a blank in front "
                "of JSON, so that nobody on the way gives it up."},
    [DI_OPT_READ_TIMEOUT] = {.name = "read-timeout", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SERVER, .value = "X", .unit = "seconds", .min = 0.1, .max = 86400,
        .default_value = "20", .verbs = SERVE,
        .help = "A request's head must be there in this time, its body in this and a second for "
                "every 16K of it that came."},
    [DI_OPT_IDLE_TIMEOUT] = {.name = "idle-timeout", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SERVER, .value = "X", .unit = "seconds", .min = 0.1, .max = 86400,
        .default_value = "75", .verbs = SERVE,
        .help = "A connection without a request is closed after this."},
    [DI_OPT_WRITE_TIMEOUT] = {.name = "write-timeout", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SERVER, .value = "X", .unit = "seconds", .min = 0.1, .max = 86400,
        .default_value = "60", .verbs = SERVE,
        .help = "A client that takes nothing of what waits for it for so long is given up."},
    [DI_OPT_DRAIN_TIMEOUT] = {.name = "drain-timeout", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SERVER, .value = "X", .unit = "seconds", .min = 0, .max = 86400,
        .default_value = "30", .verbs = SERVE,
        .help = "After SIGTERM or Ctrl-C answers in progress have this time to end; a second signal "
                "ends them at once."},
    [DI_OPT_METRICS] = {.name = "metrics", .type = DI_TYPE_CHOICE, .group = DI_GROUP_SERVER,
        .value = "NAMES", .choices = "deepinfer|vllm", .default_value = "deepinfer",
        .verbs = SERVE,
        .help = "What the names under /metrics begin with; with vllm, dashboards made for that "
                "work."},
    [DI_OPT_DEBUG] = {.name = "debug", .type = DI_TYPE_FLAG, .group = DI_GROUP_SERVER,
        .verbs = SERVE,
        .help = "Keep the last 1024 steps and requests, for /debug/timeline: where their time went, "
                "in Chrome's trace format. With --api-keys only who has a key may see it."},
    [DI_OPT_SLOW_STEP_MS] = {.name = "slow-step-ms", .type = DI_TYPE_REAL,
        .group = DI_GROUP_SERVER, .value = "X", .unit = "milliseconds", .min = 0, .max = 86400000,
        .default_value = "0", .verbs = SERVE,
        .help = "A step that takes longer is logged, with its parts; 0: none is."},
    [DI_OPT_SETTINGS] = {.name = "settings", .type = DI_TYPE_FILE, .group = DI_GROUP_SERVER,
        .value = "FILE", .default_note = "none", .verbs = SERVE,
        .help = "Options from a file, a JSON object whose members have their names: {\"port\": 8001, "
                "\"name\": [\"a\", \"b\"], \"quiet\": true}. What is given here counts where both "
                "say something; lists are joined."},

    [DI_OPT_SCENARIO] = {.name = "scenario", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "LIST", .default_value = "prefill,decode,row,latency,gap", .verbs = BENCH,
        .help = "What to measure, separated by commas: prefill, decode, row, latency, cache, cut, "
                "speculation, sampled, gap, or all."},
    [DI_OPT_PAIRS] = {.name = "pairs", .type = DI_TYPE_INT, .group = DI_GROUP_PROMPT,
        .value = "N", .min = 1, .max = 1000, .default_value = "3", .verbs = BENCH,
        .help = "Runs of each side of a comparison, in turn. With 6 or more, the interval that "
                "is printed covers the median 95 times in 100."},
    [DI_OPT_PROMPT_TOKENS] = {.name = "prompt-tokens", .type = DI_TYPE_TEXT,
        .group = DI_GROUP_PROMPT, .value = "LIST", .unit = "tokens",
        .default_note = "each scenario's own", .verbs = BENCH,
        .help = "Lengths of prompts, separated by commas."},
    [DI_OPT_BATCHES] = {.name = "batches", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "LIST", .default_note = "each scenario's own", .verbs = BENCH,
        .help = "Numbers of simultaneous requests, separated by commas."},
    [DI_OPT_RATES] = {.name = "rates", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "LIST", .default_value = "50%,80%", .verbs = BENCH,
        .help = "Rates of the latency scenario, separated by commas: requests a second, or with % "
                "in parts of what the engine can do."},
    [DI_OPT_WEIGHTS] = {.name = "weights", .type = DI_TYPE_CHOICE, .group = DI_GROUP_PROMPT,
        .value = "SOURCE", .choices = "files|random", .default_value = "files", .verbs = BENCH,
        .help = "files reads those of MODEL; random makes some of --config in memory, without "
                "MODEL."},
    [DI_OPT_TASKS] = {.name = "tasks", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "LIST", .default_note = "those of the model's folder eval; bench: "
                                         "tool_call,json,copy,add_think,prose",
        .verbs = BENCH | EVAL,
        .help = "Task files, separated by commas: names in that folder, or paths of JSONL files. "
                "In bench also of texts (.txt), and only for speculation and sampled."},
    [DI_OPT_TEXT] = {.name = "text", .type = DI_TYPE_FILE, .group = DI_GROUP_PROMPT,
        .value = "FILE", .default_note = "those of that folder, or none with --tasks",
        .verbs = EVAL, .help = "A text whose perplexity is measured. - reads stdin."},
    [DI_OPT_COMPARE] = {.name = "compare", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "SETTINGS", .default_note = "nothing is compared", .verbs = EVAL,
        .help = "Settings to run one after the other and to compare with the first, separated by "
                "commas: options of the machine as NAME=VALUE, several of them joined by +."},
    [DI_OPT_LIMIT] = {.name = "limit", .type = DI_TYPE_INT, .group = DI_GROUP_PROMPT,
        .value = "N", .unit = "lines", .min = 1, .max = 1073741824.0,
        .default_note = "all; bench: 32, in latency 64 that are made up or all of -i",
        .verbs = BENCH | EVAL,
        .help = "The first N lines of each task file, rows of a text. In bench's latency scenario, "
                "N requests."},

    [DI_OPT_IDS] = {.name = "ids", .type = DI_TYPE_FILE, .group = DI_GROUP_PROMPT,
        .value = "FILE", .default_note = "the text is an argument", .verbs = SCORE,
        .conflicts = "match-added",
        .help = "Score the token ids in FILE, separated by white space, as they are: no begin "
                "token is added. - reads stdin."},
    [DI_OPT_LOGITS] = {.name = "logits", .type = DI_TYPE_FILE, .group = DI_GROUP_OUTPUT,
        .value = "FILE.npy", .default_note = "not written", .verbs = SCORE,
        .help = "Write the logits of every position: float32 [positions, vocabulary]."},
    [DI_OPT_STREAMS] = {.name = "streams", .type = DI_TYPE_FILE, .group = DI_GROUP_OUTPUT,
        .value = "FILE.npy", .default_note = "not written", .verbs = SCORE,
        .help = "Write the residual streams after each layer: float32 [layers, positions, "
                "streams, hidden]."},
    [DI_OPT_DECODE] = {.name = "decode", .type = DI_TYPE_FLAG, .group = DI_GROUP_PROMPT,
        .verbs = TOKENIZE, .conflicts = "match-added",
        .help = "The other way round: the argument holds token ids, separated by white space or "
                "commas, and their text is printed."},
    [DI_OPT_MAN] = {.name = "man", .type = DI_TYPE_FLAG, .group = DI_GROUP_OUTPUT, .verbs = HELP,
        .conflicts = "completion",
        .help = "Print the manual page as roff, for man -l."},
    [DI_OPT_COMPLETION] = {.name = "completion", .type = DI_TYPE_CHOICE, .group = DI_GROUP_OUTPUT,
        .value = "SHELL", .choices = "bash|zsh|fish", .default_note = "none", .verbs = HELP,
        .help = "Print the completion script of a shell."},

    [DI_OPT_CONFIG] = {.name = "config", .type = DI_TYPE_FILE, .group = DI_GROUP_PROMPT,
        .value = "FILE", .default_note = "must be given; bench: with --weights random",
        .verbs = SYNTH | BENCH,
        .help = "config.json to build from; the words released and tiny mean the released geometry "
                "and a small one of every mechanism."},
    [DI_OPT_TOKENIZER] = {.name = "tokenizer", .type = DI_TYPE_DIR, .group = DI_GROUP_PROMPT,
        .value = "DIR", .default_note = "a token map is written", .verbs = SYNTH,
        .help = "Take the tokenizer of this directory along; the vocabulary and the Engram map take "
                "their sizes from it."},
    [DI_OPT_SHARDS] = {.name = "shards", .type = DI_TYPE_INT, .group = DI_GROUP_OUTPUT,
        .value = "N", .unit = "files", .min = 1, .max = 1024,
        .default_note = "one for about every 10 GiB", .verbs = SYNTH,
        .help = "Files that the tensors are spread over."},
    [DI_OPT_SPARSE] = {.name = "sparse", .type = DI_TYPE_FLAG, .group = DI_GROUP_OUTPUT,
        .verbs = SYNTH,
        .help = "Files of full size without data, which take no disk space: all bytes are zero but "
                "those that one short prompt looks at; its ids are printed."},
    [DI_OPT_SET] = {.name = "set", .type = DI_TYPE_LIST, .group = DI_GROUP_PROMPT,
        .value = "KEY=VALUE", .default_note = "the config as it is", .verbs = SYNTH | BENCH,
        .help = "Change a field of the config first. May be given several times."},
    [DI_OPT_LAYERS] = {.name = "layers", .type = DI_TYPE_TEXT, .group = DI_GROUP_PROMPT,
        .value = "N|LIST", .default_note = "all", .verbs = SYNTH | BENCH,
        .help = "The first N layers, or those in a list of their numbers, separated by commas. Lists "
                "in the config are cut to match; a layer whose cache or selection came from one that "
                "is left out makes its own."},
    [DI_OPT_DRAFT_LAYERS] = {.name = "draft-layers", .type = DI_TYPE_INT,
        .group = DI_GROUP_PROMPT, .value = "N", .min = 0, .max = 255,
        .default_note = "the config's", .verbs = SYNTH | BENCH, .help = "Draft layers to keep."},
    [DI_OPT_EXPERTS] = {.name = "experts", .type = DI_TYPE_INT, .group = DI_GROUP_PROMPT,
        .value = "N", .min = 1, .max = 4096, .default_note = "the config's", .verbs = SYNTH | BENCH,
        .help = "Routed experts of each layer, and at most so many of each draft layer."},
    [DI_OPT_ENGRAM_ROWS] = {.name = "engram-rows", .type = DI_TYPE_INT, .group = DI_GROUP_PROMPT,
        .value = "N", .unit = "rows", .min = 1, .max = 1099511627776.0,
        .default_note = "the config's", .verbs = SYNTH | BENCH,
        .help = "About so many rows in each Engram table: the sum of primes near N divided by the "
                "columns."},
    [DI_OPT_VISION] = {.name = "vision", .type = DI_TYPE_SWITCH, .group = DI_GROUP_PROMPT,
        .default_value = "yes", .verbs = SYNTH,
        .help = "Write the vision tower that the config describes."},

    [DI_OPT_JSON] = {.name = "json", .type = DI_TYPE_FLAG, .group = DI_GROUP_OUTPUT,
        .verbs = ALL & ~(CHAT | BATCH | SERVE | HELP), .help = "Print JSON, for programs."},
    [DI_OPT_QUIET] = {.name = "quiet", .letter = 'q', .type = DI_TYPE_FLAG,
        .group = DI_GROUP_OUTPUT, .verbs = ALL & ~(TOKENIZE | INSPECT | HELP),
        .help = "No progress and no speeds on stderr; in serve no line for each request."},
    [DI_OPT_HELP] = {.name = "help", .letter = 'h', .type = DI_TYPE_FLAG,
        .group = DI_GROUP_OUTPUT, .verbs = ALL, .help = "Print this help."},
};
/* clang-format on */
