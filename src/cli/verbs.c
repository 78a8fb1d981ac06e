/* The verbs: what each is for, in the words of --help and the man pages. */
#include <string.h>

#include "cli/cli.h"

static const char *const run_examples[] =
    {"deepinfer run models/demo \"Tell me a story about a fox.\"",
     "an answer, streamed",
     "deepinfer run MODEL --no-thinking --temperature 0 - < question.txt",
     "the most likely answer to a file, without thinking",
     "deepinfer run MODEL --json \"Hi\" | jq .usage",
     "for programs",
     NULL};

static const char *const chat_examples[] =
    {"deepinfer chat models/demo --no-thinking", "talk with the demo model",
     "deepinfer chat MODEL --system \"Answer in one sentence.\"", "with a system message", NULL};

static const char *const score_examples[] =
    {"deepinfer score MODEL \"The quick brown fox\"", "a line of JSON for every token",
     "deepinfer score MODEL --ids ids.txt --logits logits.npy --numerics float",
     "given ids, and all logits for NumPy", NULL};

static const char *const batch_examples[] =
    {"deepinfer batch models/demo -i requests.jsonl -o results.jsonl",
     "all requests of a file, or what is left of them",
     "deepinfer batch MODEL -i requests.jsonl -o results.jsonl --max-batch 64 --seed 1",
     "64 at a time, the same results every time", NULL};

static const char *const serve_examples[] =
    {"deepinfer serve models/demo",
     "on http://127.0.0.1:8000",
     "deepinfer serve MODEL --host 0.0.0.0 --api-keys keys.txt --max-batch 64",
     "for others, with keys",
     ("curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d "
      "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'"),
     "a question",
     NULL};

static const char *const bench_examples[] =
    {"deepinfer bench models/demo",
     "tables of what matters, in minutes",
     "deepinfer bench models/demo --scenario speculation --tasks json,copy --batches 1,8",
     "what drafts bring",
     "deepinfer bench MODEL --scenario cache,cut --pairs 15 --json > cache.json",
     "with intervals worth having, for programs",
     "deepinfer bench --weights random --config released --layers 4 --experts 16",
     "a slice of full width, without files",
     NULL};

static const char *const eval_examples[] =
    {"deepinfer eval models/demo",
     "accuracy over the model's task files, perplexity of its text",
     "deepinfer eval MODEL --tasks mine.jsonl --json",
     "one's own tasks, for programs",
     "deepinfer eval models/demo --tasks needle,copy --compare replay=exact,replay=bounded",
     "what a faster replay costs",
     NULL};

static const char *const tokenize_examples[] = {"deepinfer tokenize MODEL \"Hello\"",
                                                "ids, separated by spaces",
                                                "deepinfer tokenize MODEL --decode \"19923 11\"",
                                                "and back", NULL};

static const char *const inspect_examples[] =
    {"deepinfer inspect models/demo",
     "a checkpoint, checked and counted",
     "deepinfer inspect released --context 1048576 --batch 8",
     "what eight full contexts would take",
     "deepinfer inspect MODEL --json | jq .kinds.experts.bytes",
     "for programs",
     NULL};

static const char *const synth_examples[] =
    {"deepinfer synth --config tiny DIR",
     "a few MB with every mechanism",
     "deepinfer synth --config released --layers 4 --experts 16 --engram-rows 100000 DIR",
     "a slice of full width",
     "deepinfer synth --config released --layers 2,3,20,21,24 --draft-layers 0 DIR",
     "chosen layers: both ratios, candidates",
     "deepinfer synth --config released --sparse DIR",
     "the full geometry on an almost full disk",
     NULL};

static const char *const help_examples[] = {"deepinfer help run",
                                            "the options of a verb",
                                            "deepinfer help --man run | man -l -",
                                            "its manual page",
                                            "source <(deepinfer help --completion bash)",
                                            "completion in this shell",
                                            NULL};

const di_verb di_verbs[] = {
    {DI_VERB_RUN, "run", "MODEL [PROMPT]", 1, 2, "one prompt, its answer streamed to the terminal",
     "Answers PROMPT, which is a user's message; with - or without PROMPT it is read from stdin. The "
     "answer goes to stdout as it comes, the model's thinking before it, dimmed, when that is a "
     "terminal. Speeds and the seed go to stderr at the end, and where there were drafts how many tokens "
     "a step gave. Ctrl-C stops; what is there stays.\n\n"
     "With --json, one object is printed at the end: text, thinking, tool_calls, finish_reason, ids, "
     "logprobs, usage, timings, seed.",
     run_examples, di_cmd_run},
    {DI_VERB_CHAT, "chat", "MODEL", 1, 1, "a conversation in the terminal",
     "Reads messages and answers them. Ctrl-C stops an answer and keeps the conversation with what "
     "there is of it; Ctrl-D leaves. Lines can be edited and called back when the program is built "
     "with libedit. A line that ends in a backslash goes on in the next; pasted lines stay together. "
     "Lines that begin with / are commands: /help lists them.\n\n"
     "A turn reads what is new: the speeds say how many tokens of the conversation were cached. With "
     "thinking, that includes the answer before, for thoughts leave the conversation when it goes on.",
     chat_examples, di_cmd_chat},
    {DI_VERB_SCORE, "score", "MODEL [TEXT]", 1, 2, "log-probabilities of a text or of token ids",
     "Prints one JSON object a token: position, id, token, logprob. The begin token is put before "
     "TEXT if it is not there; the first token has no log-probability (null). With - or without "
     "TEXT it is read from stdin, all bytes of it. A token whose bytes are no text by themselves has "
     "token null, and its bytes.\n\n"
     "Files of --logits and --streams appear when they are complete. Log-probabilities are natural "
     "logarithms.",
     score_examples, di_cmd_score},
    {DI_VERB_BATCH, "batch", "MODEL", 1, 1, "a file of requests, many at a time",
     "Reads requests in OpenAI's batch format, one JSON object a line: custom_id, method (POST), url "
     "(/v1/chat/completions or /v1/completions) and body. Each gets one line in the output, in that "
     "format too, in the order in which they end. An answer is the same whatever runs beside it, but "
     "for --spec-sampling reject and --replay bounded.\n\n"
     "In a body: messages and tools, or prompt (text or token ids); model, max_tokens, "
     "max_completion_tokens, temperature, top_p, top_k, min_p, seed, stop, n, logprobs, top_logprobs, "
     "logit_bias, presence_penalty, frequency_penalty, repetition_penalty, thinking, "
     "reasoning_effort. A field that is not known, or is impossible, is an error of that request "
     "alone, and so is a line that is no JSON or longer than 32 MiB: its result has response null and "
     "an error with the reason. The exit code is 0 then, too; a file without requests is a failure. "
     "The seed of every request is in its result; log-probabilities are of all tokens of the answer, "
     "the thinking included, and have one form in both dialects: lists of token, logprob and "
     "bytes.\n\n"
     "When it was stopped, by Ctrl-C or in any other way, the same command goes on: results that "
     "are complete in the output are kept, a torn last line is cut off, and no request is run twice. "
     "A request is known by its custom_id alone: whoever changes the requests takes a new output "
     "file. With --seed, the rest is answered as if nothing had happened.",
     batch_examples, di_cmd_batch},
    {DI_VERB_SERVE, "serve", "MODEL", 1, 1,
     "the model over HTTP, for clients of OpenAI and Anthropic",
     "Answers POST /v1/chat/completions, /v1/completions and /v1/responses in the dialect of OpenAI, "
     "with what DeepSeek's service and vLLM add to it, and /v1/messages in that of Anthropic, streamed "
     "or whole; GET /v1/models, /health, /ready, /version and /metrics (Prometheus); POST /tokenize "
     "and /detokenize. docs/serving.md says what each field does. At / there is a page to talk to the "
     "model.\n\n"
     "It listens on this machine alone and asks for no key unless told otherwise. TLS is the business "
     "of a reverse proxy in front of it. One line a request goes to stderr.\n\n"
     "SIGTERM or Ctrl-C: no more requests are taken, answers in progress end; a second one cuts "
     "them off. SIGHUP reads the keys again.",
     serve_examples, di_cmd_serve},
    {DI_VERB_BENCH, "bench", "[MODEL]", 0, 1, "how fast a model runs here, as tables or JSON",
     "Measures what --scenario names and prints a table for each: prefill (tokens a second over "
     "prompt lengths), decode (over numbers of simultaneous requests and contexts), row (a row of a "
     "decode step against one of a prefill chunk), latency (times to the first and between tokens "
     "while requests arrive at random), cache (a prompt that was read before against a cold one, in "
     "every mode of replay), cut (what stable and bounded save of a cold prompt), speculation and "
     "sampled (drafts against none on the text of tasks, greedy and sampled), gap (how long the "
     "engine leaves the device idle).\n\n"
     "What is compared runs in turn, --pairs times each, and the ratios' median is given with its "
     "interval. For prefill and decode the machine's read bandwidth and arithmetic peak are measured "
     "first; floors follow from them and the weights alone. --spec is off but in latency and where drafts are compared. "
     "With --json everything is one document on stdout, times in seconds. Ctrl-C stops; what is done "
     "is printed.",
     bench_examples, di_cmd_bench},
    {DI_VERB_EVAL, "eval", "MODEL", 1, 1, "accuracy over task files, perplexity of a text",
     "Answers the lines of task files, many at a time and with the most likely tokens unless "
     "--temperature says otherwise, and prints for each file the share of right answers with its 95 % "
     "interval, and the share of answers whose whole text, the thinking included, is the expected one. "
     "Of a text it prints nats a token and perplexity, over rows of 1024 tokens. Without --tasks and "
     "--text it takes the files of MODEL/eval: *.jsonl are tasks, *.txt texts. An answer has at most "
     "512 tokens unless --max-tokens or its line says otherwise.\n\n"
     "A task file has one JSON object a line: messages (and tools) or prompt, mode (thinking or chat), "
     "reasoning_effort, answer, tool_calls, completion, max_tokens, and judge (exact, contains, number, "
     "json or calls). A line that is wrong is told on stderr and left out; the exit code is 1 then.\n\n"
     "--compare runs everything once for each setting, such as replay=exact,replay=bounded or "
     "max-batch=1,max-batch=32+spec=off, and prints what differs from the first: accuracy and nats with "
     "paired 95 % intervals, and how many answers are the same to the last token. Every prompt is "
     "read once before it is measured, so that it is found in the cache, and there is no window cache "
     "unless --window-cache says otherwise; of a text's rows the second half is measured then.\n\n"
     "Ctrl-C stops; what is done is printed.",
     eval_examples, di_cmd_eval},
    {DI_VERB_TOKENIZE, "tokenize", "MODEL [TEXT]", 1, 2, "text to token ids and back",
     "Prints the ids of TEXT on one line. With - or without TEXT it is read from stdin, all bytes of "
     "it. MODEL may be the tokenizer.json itself; no weights are read. With --json: ids, and tokens "
     "as the vocabulary spells them.",
     tokenize_examples, di_cmd_tokenize},
    {DI_VERB_INSPECT, "inspect", "MODEL", 1, 1,
     "what is in a checkpoint and what a machine needs for it",
     "Checks the names, shapes, types and places of all tensors and the scales of all but experts and "
     "tables, then tells what there is by kind, which layer reads whose cache and selection, and how "
     "much memory a context takes. MODEL may also be a config.json alone, or the word released or "
     "tiny: then everything follows from the config.\n\n"
     "A page is 64 tokens of compressed cache; windows, rings and counts are of a fixed size for each "
     "sequence; activations, logits and workspace are of a step of --chunk rows on this machine.",
     inspect_examples, di_cmd_inspect},
    {DI_VERB_SYNTH, "synth", "DIR", 1, 1, "a random checkpoint in the release's format",
     "Writes config.json, model.safetensors or shards with an index, and a token map (or a tokenizer) "
     "into DIR, which must not hold a model. The values are random but scaled so that the network "
     "behaves like one: the same seed gives the same bytes on every machine, and a slice has the "
     "values that the full model has in the same places.\n\n"
     "Ctrl-C stops; nothing is left behind.",
     synth_examples, di_cmd_synth},
    {DI_VERB_HELP, "help", "[VERB]", 0, 1, "what the verbs do and which options they take",
     "Without VERB, lists the verbs; with it, explains that verb and its options. The same text is "
     "printed by 'deepinfer VERB --help'.",
     help_examples, di_cmd_help},
};

const int di_n_verbs = (int)(sizeof di_verbs / sizeof di_verbs[0]);

const di_verb *di_verb_find(const char *name) {
    for (int i = 0; i < di_n_verbs; i++) {
        if (strcmp(di_verbs[i].name, name) == 0) return &di_verbs[i];
    }
    return NULL;
}
