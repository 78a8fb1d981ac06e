/* The verbs: what each is for, in the words of --help and the man pages. */
#include <string.h>

#include "cli/cli.h"

static const char *const run_examples[] = {
    "deepinfer run models/demo \"Tell me a story about a fox.\"", "an answer, streamed",
    "deepinfer run MODEL --no-thinking --temperature 0 - < question.txt",
    "the most likely answer to a file, without thinking",
    "deepinfer run MODEL --json \"Hi\" | jq .usage", "for programs",
    NULL};

static const char *const chat_examples[] = {
    "deepinfer chat models/demo --no-thinking", "talk with the demo model",
    "deepinfer chat MODEL --system \"Answer in one sentence.\"", "with a system message",
    NULL};

static const char *const score_examples[] = {
    "deepinfer score MODEL \"The quick brown fox\"", "a line of JSON for every token",
    "deepinfer score MODEL --ids ids.txt --logits logits.npy --numerics float",
    "given ids, and all logits for NumPy",
    NULL};

static const char *const tokenize_examples[] = {
    "deepinfer tokenize MODEL \"Hello\"", "ids, separated by spaces",
    "deepinfer tokenize MODEL --decode \"19923 11\"", "and back",
    NULL};

static const char *const help_examples[] = {
    "deepinfer help run", "the options of a verb",
    "deepinfer help --man run | man -l -", "its manual page",
    "source <(deepinfer help --completion bash)", "completion in this shell",
    NULL};

const di_verb di_verbs[] = {
    {DI_VERB_RUN, "run", "MODEL [PROMPT]", 1, 2, "one prompt, its answer streamed to the terminal",
     "Answers PROMPT, which is a user's message; with - or without PROMPT it is read from stdin. The "
     "answer goes to stdout as it comes, the model's thinking before it, dimmed, when that is a "
     "terminal. Speeds and the seed go to stderr at the end. Ctrl-C stops; what is there stays.\n\n"
     "With --json, one object is printed at the end: text, thinking, tool_calls, finish_reason, ids, "
     "logprobs, usage, timings, seed.",
     run_examples, di_cmd_run},
    {DI_VERB_CHAT, "chat", "MODEL", 1, 1, "a conversation in the terminal",
     "Reads messages and answers them. Ctrl-C stops an answer and keeps the conversation with what "
     "there is of it; Ctrl-D leaves. Lines can be edited and called back when the program is built "
     "with libedit. A line that ends in a backslash goes on in the next; pasted lines stay together. "
     "Lines that begin with / are commands: /help lists them.",
     chat_examples, di_cmd_chat},
    {DI_VERB_SCORE, "score", "MODEL [TEXT]", 1, 2, "log-probabilities of a text or of token ids",
     "Prints one JSON object a token: position, id, token, logprob. The begin token is put before "
     "TEXT if it is not there; the first token has no log-probability (null). With - or without "
     "TEXT it is read from stdin, all bytes of it. A token whose bytes are no text by themselves has "
     "token null, and its bytes.\n\n"
     "Files of --logits and --streams appear when they are complete. Log-probabilities are natural "
     "logarithms.",
     score_examples, di_cmd_score},
    {DI_VERB_TOKENIZE, "tokenize", "MODEL [TEXT]", 1, 2, "text to token ids and back",
     "Prints the ids of TEXT on one line. With - or without TEXT it is read from stdin, all bytes of "
     "it. MODEL may be the tokenizer.json itself; no weights are read. With --json: ids, and tokens "
     "as the vocabulary spells them.",
     tokenize_examples, di_cmd_tokenize},
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
