// The server as clients see it that nobody here wrote: OpenAI's and Anthropic's own packages.
// npm: openai@7.59.0 @anthropic-ai/sdk@1.14.0
// ctest: slow
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { assert, test, runTests, serve, metric, eventually, scratch } from './harness.mjs';

const require = createRequire(pathToFileURL(path.join(process.env.NODE_FOLDER, 'x.js')));
const load = async (name) => (await import(pathToFileURL(require.resolve(name)))).default;
const OpenAI = await load('openai'), Anthropic = await load('@anthropic-ai/sdk');

const folder = scratch();
fs.writeFileSync(path.join(folder, 'keys'), 'secret-key-1 tester\n');
const server = await serve('--api-keys', path.join(folder, 'keys'));
fs.rmSync(folder, { recursive: true });
const openai = new OpenAI({ baseURL: server.base + '/v1', apiKey: 'secret-key-1', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: server.base, apiKey: 'secret-key-1', maxRetries: 0 });
const model = 'demo';
const sum = [{ role: 'user', content: 'What is 12 + 13?' }];
const SUM = '12 + 13 = 25';

// Of the demo model's own tasks: a question that it answers by a call, then the call's result.
const line = (file) => JSON.parse(fs.readFileSync(
    path.join(process.env.SOURCE, `models/demo/eval/${file}.jsonl`), 'utf8').split('\n')[0]);
const asked = line('tool_answer');
const system = asked.messages[0].content, question = asked.messages[1].content;
const declared = asked.messages[0].tools[0], wanted = asked.messages[2].tool_calls[0];
const result = asked.messages[3].content, answered = asked.answer;

test('openai: chat, whole and streamed', async () => {
    const one = await openai.chat.completions.create({ model, messages: sum, temperature: 0 });
    assert.equal(one.choices[0].message.content, SUM);
    assert.equal(one.choices[0].finish_reason, 'stop');
    const stream = await openai.chat.completions.create({ model, messages: sum, temperature: 0,
        stream: true, stream_options: { include_usage: true } });
    let text = '', thought = '', usage = null;
    for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? '';
        thought += chunk.choices[0]?.delta.reasoning_content ?? '';
        usage = chunk.usage ?? usage;
    }
    assert.equal(text, SUM);
    assert.equal(thought, one.choices[0].message.reasoning_content);
    /* What was cached and which drafts stood depends on what ran before. */
    assert.deepEqual(usage, { ...one.usage, prompt_tokens_details: usage.prompt_tokens_details,
        completion_tokens_details: { ...one.usage.completion_tokens_details,
            accepted_prediction_tokens:
                usage.completion_tokens_details.accepted_prediction_tokens },
        prompt_cache_hit_tokens: usage.prompt_cache_hit_tokens,
        prompt_cache_miss_tokens: usage.prompt_cache_miss_tokens });
    const models = await openai.models.list();
    assert.equal(models.data[0].id, model);
    assert.equal((await openai.models.retrieve(model)).id, model);
    await assert.rejects(openai.models.retrieve('other'), OpenAI.NotFoundError);
});

test('openai: the helper that gathers a stream, with tools and back', async () => {
    const tools = [{ type: 'function', function: declared }];
    const messages = [{ role: 'developer', content: system }, { role: 'user', content: question }];
    const base = { model, tools, temperature: 0, thinking: { type: 'disabled' } };
    const stream = openai.chat.completions.stream({ ...base, messages });
    const whole = await stream.finalChatCompletion();
    const { message, finish_reason: finish } = whole.choices[0];
    assert.equal(finish, 'tool_calls');
    const call = message.tool_calls[0];
    assert.equal(call.function.name, wanted.name);
    assert.deepEqual(JSON.parse(call.function.arguments), wanted.arguments);
    const next = await openai.chat.completions.create({ ...base,
        messages: [...messages, message, { role: 'tool', tool_call_id: call.id, content: result }] });
    assert.equal(next.choices[0].message.content, answered);
    assert.ok(next.usage.prompt_tokens_details.cached_tokens > 0);
});

test('openai: structured output', async () => {
    const schema = { type: 'object', additionalProperties: false, required: ['sum', 'sure'],
        properties: { sum: { type: 'integer', minimum: 0, maximum: 99 }, sure: { type: 'boolean' } } };
    const format = { type: 'json_schema', json_schema: { name: 'sum', strict: true, schema } };
    const whole = await openai.chat.completions.parse({ model, messages: sum, temperature: 0,
        thinking: { type: 'disabled' }, response_format: format, max_tokens: 100 });
    assert.equal(whole.choices[0].finish_reason, 'stop');
    const value = JSON.parse(whole.choices[0].message.content);
    assert.ok(Number.isInteger(value.sum) && typeof value.sure === 'boolean');
    const stream = openai.chat.completions.stream({ model, messages: sum, temperature: 0,
        thinking: { type: 'disabled' }, response_format: format, max_tokens: 100 });
    assert.equal((await stream.finalChatCompletion()).choices[0].message.content,
        whole.choices[0].message.content);
    const called = await openai.chat.completions.create({ model, messages: sum, temperature: 0,
        thinking: { type: 'disabled' }, tool_choice: 'required', max_tokens: 200,
        tools: [{ type: 'function', function: { name: 'answer', strict: true, parameters: schema } }] });
    const [call] = called.choices[0].message.tool_calls;
    assert.equal(call.function.name, 'answer');
    assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ['sum', 'sure']);
    const response = await openai.responses.create({ model, input: sum, temperature: 0,
        reasoning: { effort: 'none' }, max_output_tokens: 100,
        text: { format: { type: 'json_schema', name: 'sum', strict: true, schema } } });
    assert.deepEqual(Object.keys(JSON.parse(response.output_text)), ['sum', 'sure']);
});

test('openai: errors are its own classes', async () => {
    const create = (more, client = openai) =>
        client.chat.completions.create({ model, messages: sum, ...more });
    await assert.rejects(create({ temperature: 5 }), (e) => e instanceof OpenAI.BadRequestError &&
        e.param === 'temperature' && e.type === 'invalid_request_error');
    await assert.rejects(create({ model: 'other' }), (e) => e instanceof OpenAI.NotFoundError &&
        e.code === 'model_not_found');
    await assert.rejects(create({ messages: [{ role: 'user', content: 'fox '.repeat(5000) }] }),
        (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded');
    await assert.rejects(create({ response_format: { type: 'yaml' } }),
        (e) => e instanceof OpenAI.BadRequestError && e.param === 'response_format');
    const stranger = new OpenAI({ baseURL: server.base + '/v1', apiKey: 'x', maxRetries: 0 });
    await assert.rejects(create({}, stranger), (e) => e instanceof OpenAI.AuthenticationError);
});

test('openai: an abort ends the work', async () => {
    const stream = await openai.chat.completions.create({ model, messages: sum, stream: true,
        max_tokens: 3000, logit_bias: { 1: -1000 } });
    for await (const chunk of stream) {
        assert.ok(chunk.id);
        break; // leaves, and so aborts
    }
    await eventually('nothing runs', async () =>
        (await metric(server, 'deepinfer:num_requests_running')) === 0);
});

test('openai: completions', async () => {
    const one = await openai.completions.create({ model, prompt: 'In the beginning', temperature: 0,
        max_tokens: 6, logprobs: 1 });
    assert.equal(one.choices[0].logprobs.tokens.length, 6);
    const stream = await openai.completions.create({ model, prompt: 'In the beginning',
        temperature: 0, max_tokens: 6, stream: true });
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0].text;
    assert.equal(text, one.choices[0].text);
});

test('openai: responses, whole and streamed, with tools and back', async () => {
    const one = await openai.responses.create({ model, input: 'What is 12 + 13?', temperature: 0 });
    assert.equal(one.output_text, SUM);
    assert.equal(one.output[0].type, 'reasoning');
    assert.equal(one.status, 'completed');
    const stream = openai.responses.stream({ model, input: sum, temperature: 0 });
    let text = '', numbers = [];
    for await (const event of stream) {
        numbers.push(event.sequence_number);
        if (event.type === 'response.output_text.delta') text += event.delta;
    }
    assert.equal(text, SUM);
    assert.deepEqual(numbers, numbers.map((_, i) => i));
    const gathered = await stream.finalResponse();
    assert.equal(gathered.output_text, SUM);
    assert.deepEqual(gathered.output.map((o) => o.type), one.output.map((o) => o.type));
    assert.equal(gathered.output[0].content[0].text, one.output[0].content[0].text);
    assert.equal(gathered.usage.output_tokens, one.usage.output_tokens);

    const base = { model, temperature: 0, instructions: system, reasoning: { effort: 'none' },
        tools: [{ type: 'function', ...declared }] };
    const input = [{ role: 'user', content: question }];
    const called = await openai.responses.stream({ ...base, input }).finalResponse();
    const whole = await openai.responses.create({ ...base, input });
    const call = called.output.find((o) => o.type === 'function_call');
    assert.equal(call.name, wanted.name);
    assert.deepEqual(JSON.parse(call.arguments), wanted.arguments);
    assert.deepEqual(whole.output.map((o) => [o.type, o.name, o.arguments]),
        called.output.map((o) => [o.type, o.name, o.arguments]));
    const next = await openai.responses.create({ ...base, input: [...input, ...called.output,
        { type: 'function_call_output', call_id: call.call_id, output: result }] });
    assert.equal(next.output_text, answered);

    const cut = await openai.responses.create({ model, input: sum, max_output_tokens: 3 });
    assert.equal(cut.status, 'incomplete');
    assert.equal(cut.incomplete_details.reason, 'max_output_tokens');
    await assert.rejects(openai.responses.create({ model, input: 'x', previous_response_id: 'r' }),
        (e) => e instanceof OpenAI.BadRequestError && e.param === 'previous_response_id');
});

// ---- Anthropic ----

test('anthropic: messages, whole and streamed', async () => {
    const ask = { model: 'claude-something', max_tokens: 200, temperature: 0, messages: sum };
    const one = await anthropic.messages.create(ask);
    assert.deepEqual(one.content.map((b) => b.type), ['thinking', 'text']);
    assert.equal(one.content[1].text, SUM);
    assert.equal(one.stop_reason, 'end_turn');
    const stream = anthropic.messages.stream(ask);
    let text = '';
    stream.on('text', (piece) => (text += piece));
    const gathered = await stream.finalMessage();
    assert.equal(text, SUM);
    assert.deepEqual(gathered.content, one.content);
    assert.equal(gathered.usage.output_tokens, one.usage.output_tokens);
    const off = await anthropic.messages.create({ ...ask, thinking: { type: 'disabled' } });
    assert.deepEqual(off.content, [{ type: 'text', text: SUM }]);
    const cut = await anthropic.messages.create({ ...ask, max_tokens: 3 });
    assert.equal(cut.stop_reason, 'max_tokens');
    const stopped = await anthropic.messages.create({ ...ask, thinking: { type: 'disabled' },
        stop_sequences: ['zzz', '= 25'] });
    assert.equal(stopped.stop_reason, 'stop_sequence');
    assert.equal(stopped.stop_sequence, '= 25');
    assert.equal(stopped.content[0].text, '12 + 13 ');
    const begun = await anthropic.messages.create({ ...ask, thinking: { type: 'disabled' },
        messages: [...sum, { role: 'assistant', content: '12 + 13' }] });
    assert.equal(begun.content[0].text, ' = 25');
    const models = await anthropic.models.list();
    assert.equal(models.data[0].id, model);
    assert.equal((await anthropic.models.retrieve(model)).display_name, model);
    const count = await anthropic.messages.countTokens({ model: 'x', messages: sum });
    assert.equal(count.input_tokens,
        one.usage.input_tokens + one.usage.cache_read_input_tokens);
});

test('anthropic: tools and back', async () => {
    const base = { model, max_tokens: 200, temperature: 0, system,
        thinking: { type: 'disabled' }, tools: [{ name: declared.name,
            description: declared.description, input_schema: declared.parameters }] };
    const messages = [{ role: 'user', content: question }];
    const one = await anthropic.messages.create({ ...base, messages });
    assert.equal(one.stop_reason, 'tool_use');
    const use = one.content.find((b) => b.type === 'tool_use');
    assert.equal(use.name, wanted.name);
    assert.deepEqual(use.input, wanted.arguments);
    const gathered = await anthropic.messages.stream({ ...base, messages }).finalMessage();
    assert.deepEqual(gathered.content.map((b) => [b.type, b.name, b.input]),
        one.content.map((b) => [b.type, b.name, b.input]));
    const next = await anthropic.messages.create({ ...base, messages: [...messages,
        { role: 'assistant', content: gathered.content },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id,
            content: result }] }] });
    assert.equal(next.content.at(-1).text, answered);
    assert.ok(next.usage.cache_read_input_tokens > 0);
    const none = await anthropic.messages.create({ ...base, messages, tool_choice: { type: 'none' },
        max_tokens: 20 });
    assert.ok(!none.content.some((b) => b.type === 'tool_use'));
});

test('anthropic: errors are its own classes', async () => {
    const ask = (more) => anthropic.messages.create({ model, max_tokens: 9, messages: sum, ...more });
    await assert.rejects(ask({ temperature: 9 }), (e) =>
        e instanceof Anthropic.BadRequestError && e.error.error.type === 'invalid_request_error');
    await assert.rejects(ask({ messages: [{ role: 'king', content: 'x' }] }),
        (e) => e instanceof Anthropic.BadRequestError);
    await assert.rejects(ask({ tool_choice: { type: 'tool', name: 'b' }, tools: [{ name: 'a',
        input_schema: { type: 'object' } }] }), (e) => e instanceof Anthropic.BadRequestError);
    const stranger = new Anthropic({ baseURL: server.base, apiKey: 'x', maxRetries: 0 });
    await assert.rejects(stranger.messages.create({ model, max_tokens: 9, messages: sum }), (e) =>
        e instanceof Anthropic.AuthenticationError && e.error.error.type === 'authentication_error');
});

test('anthropic: an abort ends the work', async () => {
    const stream = anthropic.messages.stream({ model, max_tokens: 3000, messages:
        [{ role: 'user', content: 'Tell me a story about a fox.' }] });
    stream.on('streamEvent', (e) => e.type === 'content_block_delta' && stream.abort());
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
    await eventually('nothing runs', async () =>
        (await metric(server, 'deepinfer:num_requests_running')) === 0);
});

test('all of it in the end', () => server.stop());
await runTests();
