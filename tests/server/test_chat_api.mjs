// The OpenAI endpoints: every field that changes an answer, streamed and whole, and what is refused.
import { assert, test, runTests, serve, post, stream, joinChat } from './harness.mjs';

const server = await serve();
const sum = [{ role: 'user', content: 'What is 12 + 13?' }];
const chat = (body) => post(server, '/v1/chat/completions', { messages: sum, temperature: 0, ...body });
const chatStream = async (body) =>
    joinChat((await stream(server, '/v1/chat/completions',
        { messages: sum, temperature: 0, ...body })).events);

test('an answer with its thought, whole and streamed alike', async () => {
    const { json, status } = await chat({});
    assert.equal(status, 200);
    assert.equal(json.object, 'chat.completion');
    const { message, finish_reason: finish } = json.choices[0];
    assert.equal(message.content, '12 + 13 = 25');
    assert.match(message.reasoning_content, /So 12 \+ 13 = 25\.$/);
    assert.equal(finish, 'stop');
    assert.equal(json.usage.total_tokens, json.usage.prompt_tokens + json.usage.completion_tokens);
    assert.ok(json.usage.completion_tokens_details.reasoning_tokens > 10);
    const { choices, usage } = await chatStream({ stream_options: { include_usage: true } });
    assert.equal(choices[0].text, message.content);
    assert.equal(choices[0].thought, message.reasoning_content);
    assert.equal(choices[0].finish, 'stop');
    assert.equal(choices[0].roles, 1);
    assert.equal(usage.completion_tokens, json.usage.completion_tokens);
});

test('thinking is turned off by each of its switches', async () => {
    for (const off of [{ thinking: { type: 'disabled' } }, { thinking: false },
        { reasoning_effort: 'none' }, { chat_template_kwargs: { thinking: false } },
        { chat_template_kwargs: { enable_thinking: false } }]) {
        const { json } = await chat(off);
        assert.equal(json.choices[0].message.content, '12 + 13 = 25', JSON.stringify(off));
        assert.equal(json.choices[0].message.reasoning_content, undefined);
        assert.equal(json.usage.completion_tokens_details.reasoning_tokens, 0);
    }
    const low = await chat({ reasoning_effort: 'low' }), high = await chat({});
    assert.equal(low.status, 200);
    assert.notEqual(low.json.usage.prompt_tokens, 0);
    assert.equal(high.status, 200);
});

test('several answers, seeds and lengths', async () => {
    const body = { n: 3, seed: 7, temperature: 1, max_tokens: 9, thinking: false,
        messages: [{ role: 'user', content: 'Tell me a story about a fox.' }] };
    const one = await chat(body), two = await chat(body);
    const texts = one.json.choices.map((c) => c.message.content);
    assert.equal(texts.length, 3);
    assert.deepEqual(texts, two.json.choices.map((c) => c.message.content));
    assert.equal(new Set(texts).size > 1, true);
    assert.deepEqual(one.json.choices.map((c) => c.finish_reason), ['length', 'length', 'length']);
    assert.equal(one.json.usage.completion_tokens, 27);
    assert.equal(one.json.seed, 7);
    const { choices } = await chatStream(body);
    assert.deepEqual(choices.map((c) => c.text), texts);
    const newer = await chat({ ...body, max_tokens: 100, max_completion_tokens: 4 });
    assert.equal(newer.json.usage.completion_tokens, 12);
});

test('stop texts end text, tokens and log-probabilities at the same place', async () => {
    for (const stop of ['= 25', ['zzz', '13 ='], '12', 'not there']) {
        const body = { stop, thinking: false, logprobs: true, top_logprobs: 2 };
        const { json } = await chat(body);
        const choice = json.choices[0], tokens = choice.logprobs.content;
        const { choices } = await chatStream(body);
        assert.equal(choices[0].text, choice.message.content);
        assert.deepEqual(choices[0].tokens, tokens);
        assert.equal(json.usage.completion_tokens, tokens.length);
        const spelled = tokens.map((t) => t.token).join('');
        assert.ok(spelled.startsWith(choice.message.content));
        const want = '12 + 13 = 25', at = want.indexOf([stop].flat().at(-1));
        assert.equal(choice.message.content, at < 0 ? want : want.slice(0, at));
    }
});

test('log-probabilities: of every token, its rivals in order', async () => {
    const { json } = await chat({ logprobs: true, top_logprobs: 5, thinking: false });
    const tokens = json.choices[0].logprobs.content;
    assert.equal(tokens.map((t) => t.token).join(''), '12 + 13 = 25');
    for (const t of tokens) {
        assert.equal(t.top_logprobs.length, 5);
        assert.equal(t.token, t.top_logprobs[0].token);
        assert.equal(Buffer.from(t.bytes).toString(), t.token);
        for (let i = 1; i < 5; i++) {
            assert.ok(t.top_logprobs[i].logprob <= t.top_logprobs[i - 1].logprob);
        }
    }
});

test('biases, penalties, min_p and top_k change what is sampled', async () => {
    const plain = await chat({ thinking: false, logprobs: true });
    const t = await post(server, '/tokenize', { prompt: '12', add_special_tokens: false });
    assert.equal(t.status, 200);
    const first = t.json.tokens[0];
    const banned = await chat({ thinking: false, logit_bias: { [first]: -1000 } });
    assert.notEqual(banned.json.choices[0].message.content,
        plain.json.choices[0].message.content);
    const greedy = await chat({ thinking: false, temperature: 2, top_k: 1 });
    assert.equal(greedy.json.choices[0].message.content, '12 + 13 = 25');
    const narrow = await chat({ thinking: false, temperature: 2, min_p: 1 });
    assert.equal(narrow.json.choices[0].message.content, '12 + 13 = 25');
    const story = { messages: [{ role: 'user', content: 'Tell me a story about a fox.' }],
        thinking: false, max_tokens: 60 };
    const a = await chat(story), b = await chat({ ...story, frequency_penalty: 2 });
    assert.notEqual(a.json.choices[0].message.content, b.json.choices[0].message.content);
    const zero = await chat({ thinking: false, temperature: 0, top_p: 0 });
    assert.equal(zero.json.choices[0].message.content, '12 + 13 = 25');
});

// A call that the demo model has learnt, from its own task file.
import fs from 'node:fs';
import path from 'node:path';
const calls = fs.readFileSync(path.join(process.env.SOURCE, 'models/demo/eval/tool_call.jsonl'), 'utf8')
    .trim().split('\n').slice(0, 3).map((l) => JSON.parse(l)).filter((l) => l.messages);

test('tool calls, whole and streamed, and none', async () => {
    assert.ok(calls.length > 0);
    for (const task of calls) {
        const system = task.messages.find((m) => m.tools);
        const tools = system.tools;
        const messages = task.messages.map(({ tools: _, ...m }) => m);
        const body = { messages, tools, thinking: task.mode === 'thinking' };
        const { json } = await chat(body);
        const choice = json.choices[0];
        assert.equal(choice.finish_reason, 'tool_calls', JSON.stringify(json));
        const call = choice.message.tool_calls[0];
        assert.equal(call.type, 'function');
        assert.match(call.id, /^call_/);
        assert.equal(typeof JSON.parse(call.function.arguments), 'object');
        assert.ok(!JSON.stringify(choice.message).includes('DSML'));
        const { choices } = await chatStream(body);
        assert.equal(choices[0].finish, 'tool_calls');
        assert.deepEqual(choices[0].calls.map((c) => [c.name, c.arguments]),
            choice.message.tool_calls.map((c) => [c.function.name, c.function.arguments]));
        const none = await chat({ ...body, tool_choice: 'none', max_tokens: 50 });
        assert.equal(none.json.choices[0].message.tool_calls, undefined);
        assert.ok(!none.text.includes('DSML'));
        assert.equal(none.json.usage.prompt_tokens, json.usage.prompt_tokens);
    }
});

test('an answer goes on from a beginning', async () => {
    const { json } = await chat({ thinking: false,
        messages: [...sum, { role: 'assistant', content: '12 + 13', prefix: true }] });
    assert.equal(json.choices[0].message.content, ' = 25');
    const wrong = await chat({ messages: [{ role: 'user', content: 'x', prefix: true }] });
    assert.equal(wrong.status, 400);
});

test('a prompt that was read before is found', async () => {
    const long = 'The quick brown fox jumps over the lazy dog. '.repeat(20);
    const body = { messages: [{ role: 'user', content: long }], thinking: false, max_tokens: 4 };
    await chat(body);
    const { json } = await chat(body);
    const { usage } = json;
    assert.ok(usage.prompt_cache_hit_tokens > 0.8 * usage.prompt_tokens, JSON.stringify(usage));
    assert.equal(usage.prompt_tokens_details.cached_tokens, usage.prompt_cache_hit_tokens);
    assert.equal(usage.prompt_cache_hit_tokens + usage.prompt_cache_miss_tokens,
        usage.prompt_tokens);
});

// ---- Completions ----

test('completions: text, ids, several prompts, echo, suffix', async () => {
    const say = (body) => post(server, '/v1/completions', { temperature: 0, max_tokens: 8, ...body });
    const text = 'In the beginning God created';
    const one = await say({ prompt: text });
    assert.equal(one.json.object, 'text_completion');
    assert.equal(one.json.usage.completion_tokens, 8);
    const ids = await post(server, '/tokenize', { prompt: text });
    const two = await say({ prompt: ids.json.tokens });
    assert.equal(two.json.choices[0].text, one.json.choices[0].text);
    const many = await say({ prompt: [text, 'And it came to pass', ids.json.tokens], n: 2 });
    assert.deepEqual(many.json.choices.map((c) => c.index), [0, 1, 2, 3, 4, 5]);
    assert.equal(many.json.choices[0].text, one.json.choices[0].text);
    assert.equal(many.json.choices[4].text, one.json.choices[0].text);
    assert.equal(many.json.usage.completion_tokens, 48);
    assert.ok(many.json.usage.prompt_tokens > 2 * one.json.usage.prompt_tokens);
    const echo = await say({ prompt: [text, ids.json.tokens], echo: true });
    assert.equal(echo.json.choices[0].text, text + one.json.choices[0].text);
    assert.ok(echo.json.choices[1].text.endsWith(text + one.json.choices[0].text));
    const logprobs = await say({ prompt: text, logprobs: 2 });
    const l = logprobs.json.choices[0].logprobs;
    assert.equal(l.tokens.join(''), one.json.choices[0].text);
    assert.equal(l.token_logprobs.length, 8);
    assert.equal(Object.keys(l.top_logprobs[0]).length, 2);
    const { events } = await stream(server, '/v1/completions',
        { prompt: text, temperature: 0, max_tokens: 8, echo: true });
    const joined = events.slice(0, -1).map((e) => e.data.choices[0].text).join('');
    assert.equal(joined, echo.json.choices[0].text);
    const scored = await say({ prompt: ids.json.tokens, echo: true, logprobs: 1, max_tokens: 3 });
    const s = scored.json.choices[0].logprobs, n = ids.json.count;
    assert.equal(s.tokens.length, n + 3);
    assert.equal(s.token_logprobs[0], null);
    assert.ok(s.token_logprobs.slice(1).every((x) => Number.isFinite(x) && x <= 0));
    assert.ok(s.tokens.join('').endsWith(text + scored.json.choices[0].text.slice(
        echo.json.choices[1].text.length - one.json.choices[0].text.length)));
    assert.equal(scored.json.usage.prompt_tokens, n);
    assert.equal(scored.json.usage.completion_tokens, 3);
    const only = await say({ prompt: [text, ids.json.tokens], echo: true, logprobs: 1, max_tokens: 0 });
    for (const c of only.json.choices) {
        assert.deepEqual(c.logprobs.token_logprobs, s.token_logprobs.slice(0, n));
        assert.equal(c.finish_reason, 'length');
    }
    assert.equal(only.json.usage.completion_tokens, 0);
    assert.equal((await say({ prompt: text, max_tokens: 0 })).status, 400);
    assert.equal((await say({ prompt: text, echo: true, logprobs: 1, n: 2 })).status, 400);
    const fill = await say({ prompt: 'def f(', suffix: '):' });
    assert.ok(fill.status === 200 || /suffix: this model has no token/.test(fill.text), fill.text);
});

test('tokens there and back', async () => {
    const text = 'Ein Häuschen, 汉字 🦊!';
    const there = await post(server, '/tokenize', { prompt: text, add_special_tokens: false });
    assert.equal(there.json.count, there.json.tokens.length);
    const back = await post(server, '/detokenize', { tokens: there.json.tokens });
    assert.equal(back.json.prompt, text);
    const conversation = await post(server, '/tokenize', { messages: sum });
    const { json } = await chat({});
    assert.equal(conversation.json.count, json.usage.prompt_tokens);
    assert.equal((await post(server, '/detokenize', { tokens: [-1] })).status, 400);
    assert.equal((await post(server, '/tokenize', {})).status, 400);
});

// ---- What is refused ----

test('impossible values are named', async () => {
    const bad = [
        ['temperature', ['-1', '3', '1e999', '"hot"', 'true', '[]', '-1e999']],
        ['top_p', ['-0.1', '1.1', '"x"', 'false']],
        ['top_k', ['-2', '1.5', '1e10', '"5"']],
        ['min_p', ['-1', '2', '{}']],
        ['n', ['0', '-1', '129', '1.5', '1e999', '"2"', 'true']],
        ['max_tokens', ['0', '-5', '1.5', '"9"', '1e300']],
        ['max_completion_tokens', ['0', '"9"']],
        ['seed', ['-1', '1.5', '"1"', '99999999999999999999', 'true']],
        ['presence_penalty', ['-3', '3', '"x"']],
        ['frequency_penalty', ['2.5', 'true']],
        ['stop', ['5', '[1]', '[""]', '{}', `"${'a'.repeat(1025)}"`, `[${'"a",'.repeat(64)}"a"]`]],
        ['logit_bias', ['5', '{"x": 1}', '{"1": "x"}', '{"1": 5000}', '{"99999": 1}', '{"-1": 1}']],
        ['logprobs', ['1', '"yes"']],
        ['stream', ['"yes"', '1']],
        ['stream_options', ['{"include_usage": true}']],
        ['tools', ['{}', '"x"']],
        ['reasoning_effort', ['5', '{}', '"banana"', '"0"', '"101"']],
        ['thinking', ['"on"', '{"type": "maybe"}']],
        ['chat_template_kwargs', ['5']],
        ['messages', ['[]', '"x"', '5']],
        ['model', ['5', '"demo\\u0000x"']],
        ['response_format', ['{"type": "yaml"}', '{"type": "json_schema"}', '5']],
        ['structured_outputs', ['{"choice": "a"}', '5']],
        ['guided_json', ['5', '"{"']],
        ['tool_choice', ['5']],
    ];
    for (const [key, values] of bad) {
        for (const value of values) {
            const other = key === 'messages' ? '' : '"messages": [{"role": "user", "content": "Hi"}],';
            const r = await post(server, '/v1/chat/completions', `{${other} "${key}": ${value}}`);
            assert.equal(r.status, 400, `${key}: ${value} gave ${r.text}`);
            assert.equal(r.json.error.param?.split(/[.[]/)[0], key, r.text);
            assert.equal(r.json.error.type, 'invalid_request_error');
            assert.ok(r.json.error.code);
        }
    }
    for (const value of ['NaN', 'Infinity', '-Infinity', '01', '.5', "'x'"]) {
        const r = await post(server, '/v1/chat/completions',
            `{"messages": [{"role": "user", "content": "Hi"}], "temperature": ${value}}`);
        assert.equal(r.status, 400);
        assert.match(r.json.error.message, /line 1, column/);
    }
});

test("two of DeepSeek's names stand for a mode, unless the request speaks of it", async () => {
    const messages = [{ role: 'user', content: 'What is 12 + 13?' }];
    const thinks = async (where, body) => {
        const r = await post(server, where, { max_tokens: 100, messages, temperature: 0, ...body });
        assert.equal(r.status, 200, r.text);
        if (where === '/v1/messages') return r.json.content[0].type === 'thinking';
        if (where === '/v1/responses') return r.json.output[0].type === 'reasoning';
        return r.json.choices[0].message.reasoning_content != null;
    };
    const chats = '/v1/chat/completions', model = 'deepseek-chat';
    for (const where of [chats, '/v1/messages', '/v1/responses']) {
        const o = where === '/v1/responses' ? { input: messages } : {};
        assert.equal(await thinks(where, { ...o, model }), false, where);
        assert.equal(await thinks(where, { ...o, model: 'deepseek-reasoner' }), true, where);
        assert.equal(await thinks(where, { ...o, model: 'deepseek-flash' }), true, where);
    }
    assert.equal(await thinks(chats, { model, thinking: { type: 'enabled' } }), true);
    assert.equal(await thinks(chats, { model, reasoning_effort: 'low' }), true);
    assert.equal(await thinks(chats, { model, reasoning_effort: 'none' }), false);
    assert.equal(await thinks(chats, { model, chat_template_kwargs: { thinking: true } }), true);
    assert.equal(await thinks(chats, { reasoning_effort: 'low', chat_template_kwargs: { thinking: false } }), false);
    assert.equal(await thinks(chats, { model: 'deepseek-reasoner', thinking: { type: 'disabled' } }), false);
    assert.equal(await thinks('/v1/responses', { input: messages, model, reasoning: { effort: 'low' } }), true);
    assert.equal(await thinks('/v1/messages', { model, thinking: { type: 'adaptive' } }), true);
});

test('what is within an object is named with it', async () => {
    const messages = [{ role: 'user', content: 'Hi' }];
    for (const [where, body, field] of [
        ['/v1/chat/completions', { messages, stream: true, stream_options: { include_usage: 5 } },
            'stream_options.include_usage'],
        ['/v1/chat/completions', { messages, stream: true, stream_options: 5 }, 'stream_options'],
        ['/v1/chat/completions', { messages, chat_template_kwargs: { thinking: 'on' } },
            'chat_template_kwargs.thinking'],
        ['/v1/chat/completions', { messages, chat_template_kwargs: { reasoning_effort: 5 } },
            'chat_template_kwargs.reasoning_effort'],
        ['/v1/chat/completions', { messages, structured_outputs: { json_object: 'yes' } },
            'structured_outputs.json_object'],
        ['/v1/chat/completions', { messages: [{ role: 'assistant', content: '', prefix: 5 }] },
            'messages[0].prefix'],
        ['/v1/chat/completions', { messages: [{ role: 'user', content: '', prefix: 5 }, ...messages] },
            'messages[0].prefix'],
        ['/v1/responses', { input: 'Hi', reasoning: { effort: 5 } }, 'reasoning.effort'],
        ['/v1/responses', { input: 'Hi', reasoning: { summary: 5 } }, 'reasoning.summary'],
        ['/v1/responses', { input: 'Hi', reasoning: 'high' }, 'reasoning'],
        ['/v1/messages', { messages, max_tokens: 5, output_config: { effort: 5 } },
            'output_config.effort'],
        ['/v1/messages', { messages, max_tokens: 5, tools: [{ name: 'f', input_schema: {} }],
            tool_choice: { type: 'tool', name: 5 } }, 'tool_choice.name'],
        ['/v1/messages', { messages, max_tokens: 5, tools: [{ name: 'f', input_schema: {} }],
            tool_choice: { type: 'auto', disable_parallel_tool_use: 5 } },
            'tool_choice.disable_parallel_tool_use']]) {
        const r = await post(server, where, body);
        assert.equal(r.status, 400, r.text);
        assert.ok(r.json.error.message.startsWith(field + ': '), r.text);
        if (where !== '/v1/messages') assert.equal(r.json.error.param, field);
    }
});

// What the encoder finds only in the conversation that a request was rendered as.
test('the encoder too names the place in the request', async () => {
    const bad = 'a <｜deepseek_image｜>', user = { role: 'user', content: 'Hi' };
    const said = (...content) => ({ role: 'assistant', content });
    const text = { type: 'text', text: bad }, call = { type: 'tool_use', id: 'x', name: 'a::b::c', input: {} };
    const image = { type: 'image', source: {} };
    for (const [messages, system, where] of [
        [[user], bad, 'system'], [[user], [{ type: 'text', text: 'x' }, text], 'system[1].text'],
        [[{ role: 'user', content: bad }], 'S', 'messages[0].content'],
        [[{ role: 'user', content: bad }], '', 'messages[0].content'],
        [[user, { role: 'assistant', content: bad }, user], 'S', 'messages[1].content'],
        [[user, said({ type: 'text', text: 'x' }, text), user], 'S', 'messages[1].content[1].text'],
        [[user, said({ type: 'thinking', thinking: bad }), user], 'S', 'messages[1].content[0].thinking'],
        [[user, said({ type: 'text', text: 'x' }, call), user], 'S', 'messages[1].content[1]'],
        [[{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'x', content: bad }] }], 'S',
            'messages[0].content[0].content'],
        [[{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'x', content: [image] }] }], 'S',
            'messages[0].content[0].content[0]']]) {
        for (const where_to of ['/v1/messages', '/v1/messages/count_tokens']) {
            const r = await post(server, where_to, { max_tokens: 5, system, messages });
            assert.equal(r.status, 400, where);
            assert.ok(r.json.error.message.startsWith(where + ': '), where + ' is not in ' + r.text);
        }
    }
    const output = { type: 'function_call_output', call_id: 'c' };
    const thought = { type: 'reasoning', summary: [{ type: 'summary_text', text: 'x' }] };
    const made = { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' };
    for (const [input, instructions, where] of [
        [bad, undefined, 'input'], [bad, 'S', 'input'], ['Hi', bad, 'instructions'],
        [[user, { role: 'user', content: bad }], 'S', 'input[1].content'],
        [[user, { role: 'user', content: [{ type: 'input_text', text: bad }] }], 'S',
            'input[1].content[0].text'],
        [[user, thought, { role: 'assistant', content: 'x' },
            { role: 'assistant', content: [{ type: 'output_text', text: bad }] }, user], 'S',
            'input[3].content[0].text'],
        [[user, { type: 'reasoning', summary: [{ type: 'summary_text', text: bad }] }, user], undefined,
            'input[1].summary[0].text'],
        [[user, thought, made, { ...made, name: 'a::b::c' }, { ...output, output: 'x' },
            user], 'S', 'input[3]'],
        [[user, made, { ...output, output: bad }], 'S', 'input[2].output'],
        [[user, made, { ...output, output: [{ type: 'input_text', text: bad }] }], 'S',
            'input[2].output[0].text'],
        [[user, made, { ...output, output: 5 }], 'S', 'input[2].output'],
        [[{ role: 'user', content: [{ type: 'input_image' }] }], 'S', 'input[0].content[0]']]) {
        const r = await post(server, '/v1/responses', { input, instructions });
        assert.equal(r.status, 400, where);
        assert.equal(r.json.error.param, where, r.text);
    }
});

test('null stands for a field that is not there, unknown fields are let be', async () => {
    const { status, json } = await chat({ temperature: 0, top_p: null, n: null, stop: null,
        max_tokens: null, seed: null, stream: null, tools: null, logit_bias: null, user: 'u',
        store: false, metadata: {}, verbosity: 'low', something_new: { a: 1 }, thinking: false });
    assert.equal(status, 200);
    assert.equal(json.choices[0].message.content, '12 + 13 = 25');
});

test('more answers than a request may have', async () => {
    const r = await post(server, '/v1/completions', { prompt: Array(100).fill('x'), n: 20 });
    assert.equal(r.status, 400);
    assert.equal(r.json.error.param, 'n');
});

test('too long is told with both numbers', async () => {
    const long = await chat({ messages: [{ role: 'user', content: 'fox '.repeat(5000) }] });
    assert.equal(long.status, 400);
    assert.equal(long.json.error.code, 'context_length_exceeded');
    assert.equal(long.json.error.param, 'messages');
    assert.match(long.json.error.message, /maximum context length is 4096 tokens.*requested \d{4,} /);
    const wide = await chat({ max_tokens: 5000 });
    assert.equal(wide.status, 400);
    assert.equal(wide.json.error.code, 'context_length_exceeded');
    assert.match(wide.json.error.message, /5000 in the completion/);
    const text = { prompt: 'fox '.repeat(5000) };
    assert.equal((await post(server, '/v1/completions', text)).json.error.param, 'prompt');
    const input = { input: 'fox '.repeat(5000) };
    assert.equal((await post(server, '/v1/responses', input)).json.error.param, 'input');
    // The words that Anthropic's clients look for.
    const asked = (content, max_tokens) => post(server, '/v1/messages',
        { messages: [{ role: 'user', content }], max_tokens });
    assert.match((await asked('fox '.repeat(5000), 1)).json.error.message,
        /^prompt is too long: \d{4,} tokens > 4096 maximum$/);
    assert.match((await asked('Hi', 5000)).json.error.message,
        /^input length and `max_tokens` exceed context limit: \d+ \+ 5000 > 4096, /);
});

const user = { role: 'user', content: 'What is 12 + 13?' };
const called = { role: 'assistant', content: null,
    tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{}' } }] };

test('calls that are no list are refused, even where they are empty', async () => {
    for (const tool_calls of [{}, '', 0, false, 'x', { 0: called.tool_calls[0] }]) {
        for (const more of [[user], []]) {
            const r = await chat({ messages: [user, { role: 'assistant', content: '25', tool_calls }, ...more] });
            assert.equal(r.status, 400, JSON.stringify(tool_calls));
            assert.equal(r.json.error.param, 'messages[1].tool_calls');
        }
    }
});

test('a completion has a bound of its own', async () => {
    const never = { logit_bias: { 1: -1000 }, temperature: 0 };
    const count = async (body) => {
        const r = await post(server, '/v1/completions', { ...never, ...body });
        assert.equal(r.status, 200, r.text);
        assert.equal(r.json.choices[0].finish_reason, 'length');
        return r.json.usage;
    };
    assert.equal((await count({ prompt: 'A fox' })).completion_tokens, 16);
    assert.equal((await count({ prompt: 'A fox', max_tokens: 20 })).completion_tokens, 20);
    assert.equal((await count({ prompt: 'A fox', suffix: '', max_tokens: null })).completion_tokens, 16);
    const ids = Array.from({ length: 4090 }, () => 300); /* of a context of 4096 */
    assert.equal((await count({ prompt: ids })).completion_tokens, 6);
});

test('a conversation that leaves no place for an answer', async () => {
    const said = { role: 'assistant', content: '25' };
    for (const messages of [[user, said], [said], [user, called], [user, { ...called, prefix: true }]]) {
        const r = await chat({ messages });
        assert.equal(r.status, 400, JSON.stringify(messages));
        assert.equal(r.json.error.param, 'messages');
    }
    const responses = await post(server, '/v1/responses', { input: [user, said] });
    assert.equal(responses.status, 400);
    assert.equal(responses.json.error.param, 'input');
    const use = { role: 'assistant', content: [{ type: 'tool_use', id: 'x', name: 'f', input: {} }] };
    const messages = await post(server, '/v1/messages', { max_tokens: 5, messages: [user, use] });
    assert.equal(messages.status, 400);
    assert.match(messages.json.error.message, /results of the last tool calls are missing/);
});

test('parts that cannot be shown to the model are named, wherever they are', async () => {
    const sound = { type: 'input_audio', input_audio: { data: '', format: 'wav' } };
    const text = { type: 'text', text: 'x' };
    for (const [messages, param] of [
        [[{ role: 'user', content: [text, sound] }], 'messages[0].content[1].type'],
        [[{ role: 'system', content: [{ type: 'file', file: {} }] }, user], 'messages[0].content[0].type'],
        [[user, called, { role: 'tool', tool_call_id: 'call_1', content: [sound] }],
            'messages[2].content[0].type']]) {
        const r = await chat({ messages });
        assert.equal(r.status, 400);
        assert.equal(r.json.error.param, param);
        assert.equal(r.json.error.code, 'unsupported_value');
    }
    // The same place whether or not there is a system prompt, which is no message there.
    const result = (content) => [text, { type: 'tool_result', tool_use_id: 'x', content }];
    for (const [content, where] of [[[{ type: 'document', source: {} }], '[0].type'], [5, ''],
        [result([text, { type: 'document' }]), '[1].content[1].type'], [result(5), '[1].content'],
        [[text, { type: 'text', text: 5 }], '[1].text'], [[{}], '[0].type']]) {
        for (const system of [undefined, 'Be brief.']) {
            const r = await post(server, '/v1/messages',
                { max_tokens: 5, system, messages: [user, { role: 'user', content }] });
            assert.equal(r.status, 400, r.text);
            assert.equal(r.json.error.type, 'invalid_request_error');
            assert.ok(r.json.error.message.startsWith(`messages[1].content${where}: `), r.text);
        }
    }
    for (const [system, where] of [[5, 'system: '], [[text, { type: 'image' }], 'system[1].type: ']]) {
        const r = await post(server, '/v1/messages', { max_tokens: 5, system, messages: [user] });
        assert.equal(r.status, 400);
        assert.ok(r.json.error.message.startsWith(where), r.text);
    }
    const unnamed = await post(server, '/v1/messages', { max_tokens: 5, messages: [user],
        tools: [{ name: 'f', input_schema: {} }], tool_choice: { type: 'tool' } });
    assert.equal(unnamed.status, 400);
    assert.match(unnamed.json.error.message, /^tool_choice: the name of a tool/);
    for (const block of [{ type: 'text' }, { type: 'thinking', text: 'x' }]) {
        const r = await post(server, '/v1/messages',
            { max_tokens: 5, messages: [user, { role: 'assistant', content: [block] }, user] });
        assert.equal(r.status, 400, r.text);
    }
    for (const body of [{ include: ['message.output_text.logprobs'] }, { text: 'json' }]) {
        const r = await post(server, '/v1/responses', { input: 'Hi', ...body });
        assert.equal(r.status, 400);
        assert.equal(r.json.error.param, Object.keys(body)[0]);
    }
});

test('a seed that was drawn is told, streamed or not, and gives the answer again', async () => {
    const body = { messages: [user], thinking: false, temperature: 1.5, max_tokens: 12 };
    const { events } = await stream(server, '/v1/chat/completions', body);
    const { choices } = joinChat(events);
    const { seed } = events.at(-2).data;
    assert.ok(Number.isSafeInteger(seed));
    const again = await chat({ ...body, seed });
    assert.equal(again.json.choices[0].message.content, choices[0].text);
    const text = { prompt: 'In the', temperature: 1.5, max_tokens: 12 };
    const told = (await stream(server, '/v1/completions', text)).events;
    const said = told.slice(0, -1).map((e) => e.data.choices[0].text).join('');
    const same = await post(server, '/v1/completions', { ...text, seed: told.at(-2).data.seed });
    assert.equal(same.json.choices[0].text, said);
});

test('tokens of a completion say where they begin in its text', async () => {
    const begins = (text, l) => l.tokens.map((t, i) => [...text].slice(l.text_offset[i]).join('').startsWith(t));
    const body = { prompt: 'Müll 🦊 and the fox', temperature: 0, max_tokens: 6, logprobs: 1 };
    for (const echo of [false, true]) {
        const { choices: [c] } = (await post(server, '/v1/completions', { ...body, echo })).json;
        const l = c.logprobs, from = echo ? 1 : 0; // the begin token is in no text
        assert.equal(l.text_offset.length, l.tokens.length);
        assert.equal(l.text_offset[from], 0);
        assert.ok(begins(c.text, l).every((right, i) => i < from || right || l.tokens[i].includes('\ufffd')));
        const { events } = await stream(server, '/v1/completions', { ...body, echo });
        assert.deepEqual(events.slice(0, -1).flatMap((e) => e.data.choices[0].logprobs?.text_offset ?? []),
            l.text_offset);
    }
    // A prompt of half a character has no text, and is no begin token either.
    const half = (await post(server, '/tokenize', { prompt: '🦊' })).json.tokens.at(-1);
    const { choices: [c] } = (await post(server, '/v1/completions',
        { ...body, prompt: [half], echo: true })).json;
    const l = c.logprobs;
    assert.equal(l.tokens[0], '\ufffd');
    assert.ok(l.text_offset.at(-1) > 0, JSON.stringify(l));
    assert.ok(begins(c.text, l).every((right, i) => i < 1 || right || l.tokens[i].includes('\ufffd')));
});

test('what vLLM calls all of the vocabulary, and an empty suffix', async () => {
    assert.equal((await chat({ top_k: -1, thinking: false })).json.choices[0].message.content,
        '12 + 13 = 25');
    const r = await post(server, '/v1/completions',
        { prompt: 'In the', suffix: '', echo: true, max_tokens: 2 });
    assert.equal(r.status, 200);
    assert.ok(r.json.choices[0].text.startsWith('In the'));
});

test('prompts are not repeated without bound', async () => {
    const r = await post(server, '/v1/completions',
        { prompt: Array(3).fill('<｜begin▁of▁sentence｜>'.repeat(4000)), echo: true, n: 128, max_tokens: 1 });
    assert.equal(r.status, 400);
    assert.equal(r.json.error.param, 'echo');
});

test('wrong conversations, models, paths, methods and types', async () => {
    for (const messages of [[{ role: 'king', content: 'x' }], [{ content: 'x' }], ['x'],
        [{ role: 'user', content: [{ type: 'image_url', image_url: 'x' }] }]]) {
        const r = await chat({ messages });
        assert.equal(r.status, 400, r.text);
        assert.match(r.json.error.param, /^messages/);
    }
    const other = await chat({ model: 'gpt-9' });
    assert.equal(other.status, 404);
    assert.equal(other.json.error.code, 'model_not_found');
    for (const model of ['demo', 'deepseek-flash']) assert.equal((await chat({ model })).status, 200);
    const asked = await (await fetch(server.base + '/v1/models/gpt-4o')).json();
    const told = await chat({ model: 'gpt-4o' });
    assert.equal(asked.error.message, 'The model `gpt-4o` does not exist; here it is called `demo`.');
    assert.equal(told.json.error.message, asked.error.message);
    assert.equal((await post(server, '/v1/nothing', {})).status, 404);
    const get = await fetch(server.base + '/v1/chat/completions');
    assert.equal(get.status, 405);
    assert.equal(get.headers.get('allow'), 'POST');
    const text = await post(server, '/v1/chat/completions', '{}', { 'Content-Type': 'text/plain' });
    assert.equal(text.status, 415);
    for (const body of ['', '[]', '"x"', '{', '{"a": 1} x', '{"a": 1, "a": 2}']) {
        const r = await post(server, '/v1/chat/completions', body);
        assert.equal(r.status, 400, body);
    }
});

test('models, version, health', async () => {
    const models = await (await fetch(server.base + '/v1/models')).json();
    assert.equal(models.data[0].id, 'demo');
    assert.equal(models.data[0].max_model_len, 4096);
    for (const where of ['/health', '/ready', '/version']) {
        const r = await fetch(server.base + where);
        assert.equal(r.status, 200);
        await r.json();
        assert.equal((await fetch(server.base + where, { method: 'HEAD' })).status, 200);
    }
});

test('all of it in the end', () => server.stop());
await runTests();
