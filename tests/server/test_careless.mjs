// Clients that were written for another server: what they send and this one has not is said by its name,
// and what it has works as there.
import { assert, test, runTests, serve, post, stream } from './harness.mjs';

const server = await serve('-q');
const chatPath = '/v1/chat/completions';
const sum = [{ role: 'user', content: 'What is 12 + 13?' }];
const plain = { messages: sum, thinking: false, temperature: 0, max_tokens: 30 };
const chat = (more) => post(server, chatPath, { ...plain, ...more });

test('what would change the answer and is not here is refused by its name', async () => {
    const functions = [{ name: 'f', parameters: {} }];
    const paths = {
        [chatPath]: [plain, { functions, audio: { voice: 'x' }, web_search_options: {}, min_tokens: 3,
            stop_token_ids: [5], bad_words: ['x'], allowed_token_ids: [5], use_beam_search: true,
            include_stop_str_in_output: true, truncate_prompt_tokens: 9, prompt_logprobs: 0, echo: true,
            continue_final_message: true }],
        '/v1/completions': [{ prompt: 'In the', max_tokens: 2 }, { min_tokens: 1, prompt_embeds: 'x' }],
        '/v1/responses': [{ input: 'Hi', max_output_tokens: 2 }, { top_logprobs: 2 }],
        '/v1/messages': [{ messages: sum, max_tokens: 2 }, { mcp_servers: [{}], container: 'x' }],
    };
    for (const [path, [body, fields]] of Object.entries(paths)) {
        for (const [field, value] of Object.entries(fields)) {
            const r = await post(server, path, { ...body, [field]: value });
            assert.equal(r.status, 400, `${path} ${field}: ${r.text}`);
            assert.ok(r.json.error.message.startsWith(`${field}: it is not supported; `), r.text);
            if (path !== '/v1/messages') assert.equal(r.json.error.code, 'unsupported_value');
        }
    }
    const idle = await chat({ functions: [], audio: null, min_tokens: 0, stop_token_ids: [], bad_words: [],
        use_beam_search: false, include_stop_str_in_output: false, prompt_logprobs: null });
    assert.equal(idle.json.choices[0].message.content, '12 + 13 = 25', idle.text);
});

test('ignore_eos: an answer ends by its length, or by a stop text', async () => {
    const long = await chat({ ignore_eos: true, max_tokens: 40 });
    assert.equal(long.json.choices[0].finish_reason, 'length', long.text);
    assert.equal(long.json.usage.completion_tokens, 40);
    assert.ok(long.json.choices[0].message.content.startsWith('12 + 13 = 25'), long.text);
    const cut = await chat({ ignore_eos: true, stop: ['= 2'], logit_bias: { 1: 5 } });
    assert.equal(cut.json.choices[0].message.content, '12 + 13 ');
    assert.equal((await chat({ ignore_eos: false })).json.choices[0].finish_reason, 'stop');
    const raw = await post(server, '/v1/completions',
        { prompt: 'In the', ignore_eos: true, max_tokens: 200, temperature: 0 });
    assert.equal(raw.json.usage.completion_tokens, 200, raw.text);
    assert.equal((await chat({ ignore_eos: 'yes' })).json.error.param, 'ignore_eos');
});

test('structured_outputs that hold the answer to nothing are refused', async () => {
    for (const structured_outputs of [{ foo: 1 }, { jsons: {} }, {}, { json: null },
        { disable_any_whitespace: true }]) {
        const r = await chat({ structured_outputs });
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, 'structured_outputs');
    }
    assert.equal((await chat({ structured_outputs: null })).status, 200);
    assert.equal((await chat({ structured_outputs: { choice: ['ab'] } })).json.choices[0].message.content, 'ab');
});

test('top tokens of a completion: the sampled one is among them, and none hides another', async () => {
    const quoted = await post(server, '/v1/completions', { prompt: 'She said: "I will", and he: ',
        echo: true, logprobs: 20, max_tokens: 20, temperature: 0 });
    const l = quoted.json.choices[0].logprobs;
    assert.equal(l.token_logprobs[0], null);
    assert.equal(l.top_logprobs[0], null, 'nothing was predicted there');
    for (let i = 1; i < l.tokens.length; i++) {
        assert.equal(l.top_logprobs[i][l.tokens[i]], l.token_logprobs[i], l.tokens[i]);
    }
    // In JSON the one ends as the other is written.
    assert.ok(l.top_logprobs.some((top) => top && '"A' in top && 'A' in top), quoted.text);
    const forced = await post(server, '/v1/completions', { prompt: 'In the', logprobs: 1, max_tokens: 1,
        logit_bias: { 100: 1000 } });
    const top = forced.json.choices[0].logprobs.top_logprobs[0];
    assert.equal(Object.keys(top).length, 2, forced.text);
});

test('an item of a response that the length cut says so', async () => {
    for (const [reasoning, max_output_tokens, want] of [[{ effort: 'none' }, 3, ['incomplete']],
        [{ effort: 'low' }, 3, ['incomplete']], [{ effort: 'none' }, 30, ['completed']]]) {
        const body = { input: sum[0].content, reasoning, max_output_tokens, temperature: 0 };
        const whole = await post(server, '/v1/responses', body);
        assert.deepEqual(whole.json.output.map((i) => i.status), want, whole.text);
        const { events } = await stream(server, '/v1/responses', body);
        const done = events.filter((e) => e.event === 'response.output_item.done');
        assert.deepEqual(done.map((e) => e.data.item.status), want);
        assert.equal(events.at(-1).data.response.status, want[0]);
    }
});

test('calls and results need what they belong together by, and are named where they stand', async () => {
    const use = { type: 'tool_use', id: 'a', name: 'f', input: {} };
    const result = { type: 'tool_result', tool_use_id: 'a', content: 'x' };
    const messages = (one, other) => post(server, '/v1/messages', { max_tokens: 2, system: 'x',
        messages: [...sum, { role: 'assistant', content: [one] }, { role: 'user', content: [other] }] });
    assert.equal((await messages(use, result)).status, 200);
    for (const [one, other, where] of [[{ ...use, id: undefined }, result, 'messages[1].content[0].id'],
        [{ ...use, id: 5 }, result, 'messages[1].content[0].id'],
        [{ ...use, name: '' }, result, 'messages[1].content[0].name'],
        [use, { ...result, tool_use_id: undefined }, 'messages[2].content[0].tool_use_id']]) {
        const r = await messages(one, other);
        assert.equal(r.status, 400, r.text);
        assert.ok(r.json.error.message.startsWith(where + ': '), r.text);
    }
    const call = { type: 'function_call', name: 'f', arguments: '{}', call_id: 'a' };
    const output = { type: 'function_call_output', call_id: 'a', output: 'x' };
    for (const [input, where] of [[[{ ...call, name: '' }, output], 'input[0].name'],
        [[call, { ...output, output: null }], 'input[1].output'],
        [[call, { ...output, output: [{ type: 'input_image' }] }], 'input[1].output[0]']]) {
        const r = await post(server, '/v1/responses', { input, max_output_tokens: 2 });
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, where);
    }
});

test('a user who says nothing is not answered', async () => {
    for (const message of [{ role: 'user' }, { role: 'user', content: null }, { role: 'user', text: 'Hi' }]) {
        const r = await chat({ messages: [{ role: 'system' }, message] });
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, 'messages[1].content');
    }
    assert.equal((await chat({ messages: [{ role: 'user', content: '' }] })).status, 200);
});

test('both of the addresses that Anthropic\'s clients are given list models', async () => {
    for (const path of ['/v1/models', '/anthropic/v1/models']) {
        const headers = { 'anthropic-version': '2023-06-01' };
        const list = await (await fetch(server.base + path, { headers })).json();
        assert.equal(list.has_more, false);
        assert.equal(list.data[0].type, 'model');
        const one = await (await fetch(`${server.base}${path}/${list.data[0].id}`, { headers })).json();
        assert.deepEqual(one, list.data[0]);
    }
});

test('all of it in the end', () => server.stop());
await runTests();
