// The server as the AI SDK sees it: texts, byte by byte, tools over several steps, objects, errors, aborts.
// npm: ai@6.0.325 @ai-sdk/openai-compatible@2.0.92 @ai-sdk/openai@3.0.141 @ai-sdk/anthropic@3.0.140
// By its providers for chat completions (two), responses and messages.
// ctest: slow
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { assert, test, runTests, serve, metric, eventually } from './harness.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const require = createRequire(pathToFileURL(path.join(process.env.NODE_FOLDER, 'x.js')));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, generateObject, streamObject, jsonSchema, tool, stepCountIs,
    APICallError } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const { createOpenAI } = await load('@ai-sdk/openai');
const { createAnthropic } = await load('@ai-sdk/anthropic');

const server = await serve('--spec', 'fixed');

// Requests with what the SDK has no word for: how much is thought, and that responses show it.
const withThoughts = (on) => (url, init) => {
    const body = JSON.parse(init.body), effort = on ? 'high' : 'none';
    if (url.endsWith('/responses')) body.reasoning = { effort, summary: 'auto' };
    else body.thinking = { type: on ? 'enabled' : 'disabled' };
    return fetch(url, { ...init, body: JSON.stringify(body) });
};
// Streams in pieces of `n` bytes, whatever the network made of them.
const inPieces = (n, fetch) => async (...request) => {
    const response = await fetch(...request);
    if (!/event-stream/.test(response.headers.get('content-type'))) return response;
    async function* pieces() {
        for await (const chunk of response.body) {
            for (let i = 0; i < chunk.length; i += n) yield chunk.subarray(i, i + n);
        }
    }
    return new Response(ReadableStream.from(pieces()),
        { status: response.status, headers: response.headers });
};

// The same model by every way that there is to it.
function models(fetch) {
    const baseURL = server.base + '/v1', apiKey = 'none';
    const openai = createOpenAI({ baseURL, apiKey, fetch });
    return {
        compatible: createOpenAICompatible({ name: 'deepinfer', baseURL, fetch, includeUsage: true,
            supportsStructuredOutputs: true })('demo'),
        chat: openai.chat('demo'),
        responses: openai.responses('demo'),
        messages: createAnthropic({ baseURL, apiKey, fetch })('demo'),
    };
}
const all = models(withThoughts(true)), chopped = models(inPieces(1, withThoughts(true)));
const quiet = models(withThoughts(false)), quietChopped = models(inPieces(1, withThoughts(false)));
const SUM = '12 + 13 = 25', prompt = 'What is 12 + 13?';
const settings = { temperature: 0, maxOutputTokens: 300, maxRetries: 0 };
const format = { providerOptions: { anthropic: { structuredOutputMode: 'outputFormat' } } };
const shows = (name) => name !== 'chat'; // OpenAI's own provider knows no thoughts in chat completions

const task = JSON.parse(fs.readFileSync(path.join(process.env.SOURCE,
    'models/demo/eval/tool_answer_think.jsonl'), 'utf8').split('\n')[0]);
const declared = task.messages[0].tools[0], wanted = task.messages[2].tool_calls[0];
const conversation = (run) => ({ ...settings, system: task.messages[0].content,
    prompt: task.messages[1].content, stopWhen: stepCountIs(3),
    tools: { [declared.name]: tool({ description: declared.description,
        inputSchema: jsonSchema(declared.parameters),
        execute: async (input) => {
            run.push(input);
            return task.messages[3].content;
        } }) } });

test('texts, whole and streamed a byte at a time', async () => {
    for (const name of Object.keys(all)) {
        const one = await generateText({ model: all[name], prompt, ...settings });
        assert.equal(one.text, SUM, name);
        assert.equal(one.finishReason, 'stop');
        assert.ok(one.usage.outputTokens > 10 && one.usage.inputTokens > 5);
        if (shows(name)) assert.match(one.reasoningText, /So 12 \+ 13 = 25\.$/);
        const stream = streamText({ model: chopped[name], prompt, ...settings });
        let text = '', thought = '', parts = new Set();
        for await (const part of stream.fullStream) {
            assert.notEqual(part.type, 'error', JSON.stringify(part.error));
            parts.add(part.type);
            if (part.type === 'text-delta') text += part.text;
            if (part.type === 'reasoning-delta') thought += part.text;
        }
        assert.equal(text, SUM);
        assert.equal(thought, one.reasoningText ?? '');
        assert.ok(parts.has('finish'));
        assert.equal((await stream.usage).outputTokens, one.usage.outputTokens);
        const cut = await generateText({ model: all[name], prompt, ...settings, maxOutputTokens: 3 });
        assert.equal(cut.finishReason, 'length');
    }
});

test('many characters, a byte at a time', async () => {
    const said = '汉字和日本語 🦊🐉🏳️‍🌈 é ñ';
    const schema = jsonSchema({ type: 'object', additionalProperties: false, required: ['said'],
        properties: { said: { type: 'string', enum: [said] } } });
    for (const name of Object.keys(all)) {
        const stream = streamObject({ model: quietChopped[name], prompt: 'Say it.', schema, ...settings,
            ...format });
        for await (const part of stream.partialObjectStream) {
            assert.ok(said.startsWith(part.said ?? ''), `${name}: ${part.said}`);
        }
        assert.deepEqual(await stream.object, { said }, name);
    }
});

test('tools, until the answer: whole and streamed', async () => {
    for (const name of Object.keys(all)) {
        const run = [];
        const whole = await generateText({ model: all[name], ...conversation(run) });
        assert.deepEqual(run, [wanted.arguments], name);
        assert.deepEqual(whole.steps.map((s) => s.finishReason), ['tool-calls', 'stop']);
        assert.equal(whole.text, task.answer);
        const stream = streamText({ model: chopped[name], ...conversation(run) });
        for await (const part of stream.fullStream) {
            assert.ok(part.type !== 'error' && part.type !== 'tool-error', JSON.stringify(part));
        }
        assert.deepEqual(run, [wanted.arguments, wanted.arguments]);
        assert.equal(await stream.text, task.answer);
        const last = (await stream.steps)[1];
        assert.ok(last.usage.inputTokenDetails.cacheReadTokens > 0, 'the first step is found again');
    }
});

test('a response that goes on from another', async () => {
    const one = await generateText({ model: all.responses, prompt, ...settings });
    const id = one.providerMetadata.openai.responseId;
    const two = await generateText({ model: all.responses, prompt: 'What is 3 + 4?', ...settings,
        providerOptions: { openai: { previousResponseId: id } } });
    const whole = await generateText({ model: all.responses, ...settings,
        messages: [{ role: 'user', content: prompt }, ...one.response.messages,
            { role: 'user', content: 'What is 3 + 4?' }] });
    assert.equal(two.text, whole.text);
    assert.equal(two.usage.inputTokens, whole.usage.inputTokens);
    assert.ok(two.usage.inputTokens > one.usage.inputTokens + 10);
});

test('objects', async () => {
    const schema = jsonSchema({ type: 'object', additionalProperties: false,
        required: ['sum', 'sure'], properties: { sum: { type: 'integer', minimum: 0, maximum: 99 },
            sure: { type: 'boolean' } } });
    for (const name of Object.keys(all)) {
        const { object } = await generateObject({ model: quiet[name], prompt, schema, ...settings,
            ...format });
        assert.deepEqual(Object.keys(object), ['sum', 'sure'], name);
        assert.ok(Number.isInteger(object.sum) && typeof object.sure === 'boolean');
        const stream = streamObject({ model: quietChopped[name], prompt, schema, ...settings,
            ...format });
        let parts = 0;
        for await (const part of stream.partialObjectStream) parts += part !== null;
        assert.ok(parts > 1);
        assert.deepEqual(await stream.object, object);
    }
});

test('errors are told as such', async () => {
    for (const [name, model] of Object.entries(all)) {
        const fails = (more, check) => assert.rejects(
            generateText({ model, prompt, ...settings, ...more }),
            (e) => APICallError.isInstance(e) && !e.isRetryable && check(e), name);
        await fails({ topP: 7 }, (e) => e.statusCode === 400 && /^top_p: /.test(e.message));
        await fails({ prompt: 'fox '.repeat(5000) }, (e) => e.statusCode === 400 &&
            /maximum context length is 4096 tokens|prompt is too long: \d+ tokens > 4096 maximum/
                .test(e.message));
        let told = null;
        const stream = streamText({ model, prompt, ...settings, topP: 7,
            onError: ({ error }) => (told = error) });
        await stream.consumeStream();
        assert.equal(told?.statusCode, 400, name);
    }
    await assert.rejects(generateText({ model: createOpenAI({ baseURL: server.base + '/v1',
        apiKey: 'x' }).chat('other'), prompt, ...settings }), (e) => e.statusCode === 404);
});

test('an abort ends the work, streamed or not', async () => {
    // An answer that takes seconds.
    const schema = jsonSchema({ type: 'object', additionalProperties: false, required: ['a'],
        properties: { a: { type: 'string', minLength: 6000 } } });
    const long = { prompt: 'Go on.', schema, temperature: 0, maxOutputTokens: 3500, maxRetries: 0, ...format };
    const read = async (stream) => {
        for await (const part of stream.partialObjectStream) assert.notEqual(part, null);
        throw new Error('the stream is over');
    };
    const busy = () => metric(server, 'deepinfer:num_requests_running');
    for (const model of Object.values(quiet)) {
        for (const streamed of [false, true]) {
            const control = new AbortController();
            const work = streamed
                ? read(streamObject({ model, ...long, abortSignal: control.signal,
                    onError: () => { } }))
                : generateObject({ model, ...long, abortSignal: control.signal });
            const failed = assert.rejects(work);
            await eventually('it runs', async () => await busy() === 1);
            control.abort();
            await failed;
            await eventually('nothing runs', async () => await busy() === 0, 5);
        }
    }
    assert.ok(await metric(server, 'deepinfer:generation_tokens_total') < 8 * 1500);
});

test('all of it in the end', () => server.stop());
await runTests();
