// One question to the server: a chat completion, streamed.

export class Refusal extends Error {
    constructor(status, message, field) {
        super(message);
        this.status = status;
        this.field = field;
    }
}

async function refusal(response) {
    const text = await response.text();
    try {
        const { error } = JSON.parse(text);
        return new Refusal(response.status, error.message, error.param);
    } catch {
        return new Refusal(response.status, text.slice(0, 300) || response.statusText);
    }
}

export const headers = (key) => (key ? { Authorization: 'Bearer ' + key } : {});

// The data of the events of a stream, one after the other; comments are skipped.
async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        for (const line of lines) if (line.startsWith('data: ')) yield line.slice(6).trimEnd();
    }
}

// Asks and adds what comes to `turn`, telling `changed` after each piece. Tokens are counted by their
// log-probabilities: one piece of text may be several, and a call that is withheld has no text.
export async function ask(body, key, turn, changed, signal) {
    const begun = performance.now();
    const response = await fetch('v1/chat/completions', {
        method: 'POST', signal,
        headers: { 'Content-Type': 'application/json', ...headers(key) },
        body: JSON.stringify({ ...body, stream: true, logprobs: true,
            stream_options: { include_usage: true } }),
    });
    if (!response.ok) throw await refusal(response);
    let first = 0, ended = false;
    for await (const data of events(response.body)) {
        if (data === '[DONE]') {
            ended = true;
            break;
        }
        const chunk = JSON.parse(data), now = performance.now();
        if (chunk.error) throw new Refusal(500, chunk.error.message);
        if (chunk.usage) turn.usage = chunk.usage;
        for (const { delta, logprobs, finish_reason: finish } of chunk.choices) {
            take(turn, delta, finish);
            const n = logprobs?.content?.length ?? 0;
            if (n > 0 && !first) {
                first = now;
                turn.firstMs = now - begun;
                turn.atFirst = n; // the clock begins behind these
            }
            turn.tokens += n;
            if (first && n > 0) turn.decodeMs = now - first;
        }
        changed();
    }
    if (!ended) throw new Refusal(0, 'The connection ended before the answer did.');
}

function take(turn, delta, finish) {
    turn.content += delta.content ?? '';
    turn.thought += delta.reasoning_content ?? '';
    for (const { index, id, function: f } of delta.tool_calls ?? []) {
        const call = (turn.calls[index] ??= { id, name: f.name, arguments: '', result: null });
        call.arguments += f.arguments ?? '';
    }
    if (finish) turn.finish = finish;
}

// Tokens a second behind the first piece; null while there is nothing to divide.
export function speed(turn) {
    const n = turn.tokens - turn.atFirst;
    return n > 0 && turn.decodeMs > 0 ? (n / turn.decodeMs) * 1000 : null;
}
