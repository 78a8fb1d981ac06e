// Responses that go on from one another: what is kept, for whom and how long, and that nothing of it
// can be told from a conversation that comes whole.
// ctest: slow
import fs from 'node:fs';
import path from 'node:path';
import { assert, test, runTests, serve, post, stream, scratch } from './harness.mjs';

const folder = scratch();
fs.writeFileSync(path.join(folder, 'keys'), 'key-of-alice alice\nkey-of-bob bob\n');
const server = await serve('--api-keys', path.join(folder, 'keys'));
const alice = { Authorization: 'Bearer key-of-alice' }, bob = { Authorization: 'Bearer key-of-bob' };
const base = { model: 'demo', temperature: 0, max_output_tokens: 200 };
const ask = (body, who = alice, at = server) => post(at, '/v1/responses', { ...base, ...body }, who);
const see = async (id, method = 'GET', who = alice) => {
    const r = await fetch(`${server.base}/v1/responses/${id}`, { method, headers: who });
    return { status: r.status, json: await r.json(), headers: r.headers };
};
const task = JSON.parse(fs.readFileSync(path.join(process.env.SOURCE,
    'models/demo/eval/tool_answer_think.jsonl'), 'utf8').split('\n')[0]);
const instructions = 'The quick brown fox jumps over the lazy dog. '.repeat(60) + task.messages[0].content;
const tools = task.messages[0].tools.map((f) => ({ type: 'function', ...f }));
const question = [{ role: 'user', content: task.messages[1].content }];
const result = (call) => [{ type: 'function_call_output', call_id: call.call_id,
    output: task.messages[3].content }];
const text = (r) => r.json.output.filter((o) => o.type === 'message')
    .flatMap((o) => o.content.map((c) => c.text)).join('');

test('a conversation with a call goes on as if it had come whole', async () => {
    for (const streamed of [false, true]) {
        const say = async (body) => {
            if (!streamed) return ask(body);
            const { events } = await stream(server, '/v1/responses', { ...base, ...body }, alice);
            return { json: events.at(-1).data.response };
        };
        const o = { instructions: `Streamed: ${streamed}. ${instructions}`, tools };
        const one = (await say({ ...o, input: question })).json;
        assert.equal(one.store, true);
        assert.equal(one.previous_response_id, null);
        const call = one.output.find((i) => i.type === 'function_call');
        const two = await say({ ...o, previous_response_id: one.id, input: result(call) });
        const whole = await say({ ...o, input: [...question, ...one.output, ...result(call)] });
        assert.equal(text(two), task.answer);
        assert.equal(two.json.previous_response_id, one.id);
        assert.equal(two.json.usage.input_tokens, whole.json.usage.input_tokens);
        assert.equal(text(two), text(whole));
        assert.ok(one.usage.input_tokens >= 1000);
        assert.ok(two.json.usage.input_tokens_details.cached_tokens > 0.8 * one.usage.input_tokens);
        // On from the end, and again from the first.
        const three = await say({ ...o, previous_response_id: two.json.id, input: 'What is 12 + 13?' });
        const again = await say({ ...o, input: [...question, ...one.output, ...result(call),
            ...two.json.output, { role: 'user', content: 'What is 12 + 13?' }] });
        assert.equal(three.json.usage.input_tokens, again.json.usage.input_tokens);
        assert.equal(text(three), text(again));
        const other = await say({ ...o, previous_response_id: one.id, input: result(call) });
        assert.equal(text(other), text(two));
        // By references, as some clients have it, in place of the items themselves.
        const named = await say({ ...o, input: [...question,
            ...one.output.map(({ id }) => ({ type: 'item_reference', id })), ...result(call)] });
        assert.equal(named.json.usage.input_tokens, two.json.usage.input_tokens);
        // Instructions are those of the request alone.
        const bare = await say({ tools, previous_response_id: one.id, input: result(call) });
        assert.ok(bare.json.usage.input_tokens < two.json.usage.input_tokens - 500);
    }
});

test('thoughts as summaries, when these are asked for', async () => {
    const o = { input: 'What is 12 + 13?' }, reasoning = { summary: 'auto' };
    const plain = (await ask(o)).json.output[0], told = (await ask({ ...o, reasoning })).json;
    const thought = told.output[0].summary[0];
    assert.equal(plain.content[0].type, 'reasoning_text');
    assert.deepEqual(thought, { type: 'summary_text', text: plain.content[0].text });
    const { events } = await stream(server, '/v1/responses', { ...base, ...o, reasoning }, alice);
    assert.equal(events.filter((e) => e.event === 'response.reasoning_summary_text.delta')
        .map((e) => e.data.delta).join(''), thought.text);
    assert.ok(!events.some((e) => e.event.startsWith('response.reasoning_text')));
    // Both are understood when they come back.
    const on = (item) => ask({ tools, input: [{ role: 'user', content: 'Hi' }, item,
        { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
        { type: 'function_call_output', call_id: 'c', output: 'x' }] });
    assert.equal((await on(plain)).json.usage.input_tokens,
        (await on(told.output[0])).json.usage.input_tokens);
});

test('what is kept can be seen and forgotten', async () => {
    const { json: one } = await ask({ input: 'What is 12 + 13?' });
    const seen = await see(one.id);
    assert.equal(seen.status, 200);
    assert.deepEqual(seen.json, one);
    const gone = await see(one.id, 'DELETE');
    assert.deepEqual(gone.json, { id: one.id, object: 'response', deleted: true });
    for (const method of ['GET', 'DELETE']) assert.equal((await see(one.id, method)).status, 404);
    const on = await ask({ previous_response_id: one.id, input: 'And 3 + 4?' });
    assert.equal(on.status, 400);
    assert.equal(on.json.error.code, 'previous_response_not_found');
    assert.equal(on.json.error.param, 'previous_response_id');
    const put = await see(one.id, 'PUT');
    assert.equal(put.status, 405);
    assert.equal(put.headers.get('allow'), 'GET, HEAD, DELETE');
});

test('nobody finds what another has, nor what was not to be kept', async () => {
    const { json: one } = await ask({ input: 'What is 12 + 13?' });
    assert.equal((await see(one.id, 'GET', bob)).status, 404);
    assert.equal((await see(one.id, 'DELETE', bob)).status, 404);
    const his = await ask({ previous_response_id: one.id, input: 'x' }, bob);
    assert.equal(his.json.error.code, 'previous_response_not_found');
    const { json: fleeting } = await ask({ input: 'What is 12 + 13?', store: false });
    assert.equal(fleeting.store, false);
    assert.equal((await see(fleeting.id)).status, 404);
    for (const id of ['', 'resp_', 'resp_x', 'x'.repeat(300), '%00']) {
        const r = await ask({ previous_response_id: id, input: 'x' });
        assert.equal(r.json.error.code, 'previous_response_not_found', id);
    }
    const [{ id: item }] = one.output;
    const refer = (id, who) => ask({ input: [{ type: 'item_reference', id }] }, who);
    assert.equal((await refer(item, bob)).json.error.param, 'input[0].id');
    assert.equal((await refer(item + '0')).json.error.param, 'input[0].id');
    assert.equal((await refer(undefined)).json.error.param, 'input[0].id');
    assert.equal((await ask({ previous_response_id: 5, input: 'x' })).json.error.param,
        'previous_response_id');
    assert.equal((await ask({ store: 'yes', input: 'x' })).json.error.param, 'store');
    for (const [key, value] of [['conversation', 'c'], ['prompt', { id: 'p' }], ['background', true]]) {
        const r = await ask({ [key]: value, input: 'x' });
        assert.equal(r.status, 400);
        assert.equal(r.json.error.param, key);
        assert.equal(r.json.error.code, 'unsupported_value');
    }
});

test('errors name the items of the past as such', async () => {
    // What the model may have said, but nobody may tell it.
    const { json: one } = await ask({ input: 'Hi', reasoning: { effort: 'none' },
        structured_outputs: { choice: ['<｜deepseek_image｜>'] } });
    const r = await ask({ previous_response_id: one.id, instructions: 'S',
        input: [{ role: 'user', content: 'a' }, { role: 'user', content: 'b' }] });
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json.error.param, 'previous_response_id');
    assert.match(r.json.error.message, /^previous_response_id: items\[1\]\.content\[0\]\.text: the text/);
    const item = one.output[0].id;
    const named = await ask({ input: [{ role: 'user', content: 'a' }, { type: 'item_reference', id: item }] });
    assert.equal(named.json.error.param, 'input[1].content[0].text', named.text);
});

test('what references stand for is bounded like a body', async () => {
    const small = await serve('--max-body', '4096');
    const { json: one } = await ask({ input: 'What is 12 + 13?' }, {}, small);
    const [{ id }] = one.output, size = JSON.stringify(one.output[0]).length;
    const refer = (n) => ask({ max_output_tokens: 1, input: [{ role: 'user', content: 'x' },
        ...Array(n).fill({ type: 'item_reference', id }), { role: 'user', content: 'y' }] }, {}, small);
    assert.equal((await refer(2)).status, 200);
    const many = await refer(Math.ceil(5000 / size));
    assert.equal(many.status, 400, many.text);
    assert.equal(many.json.error.param, 'input');
    assert.match(many.json.error.message, /referred to have more than 4096 bytes/);
    await small.stop();
});

test('the store has a bound, and can be none', async () => {
    const small = await serve('--response-store', '20000'), none = await serve('--response-store', '0');
    const long = 'fox '.repeat(500);
    const ids = [];
    for (let i = 0; i < 12; i++) {
        ids.push((await ask({ input: long + i, max_output_tokens: 1 }, {}, small)).json.id);
    }
    const on = (id) => ask({ previous_response_id: id, input: 'x', max_output_tokens: 1 }, {}, small);
    assert.equal((await on(ids[0])).json.error.code, 'previous_response_not_found');
    assert.equal((await on(ids.at(-1))).status, 200);
    const { json } = await ask({ input: 'Hi', store: true }, {}, none);
    assert.equal(json.store, false);
    assert.equal((await ask({ previous_response_id: json.id, input: 'x' }, {}, none)).status, 400);
    await small.stop();
    await none.stop();
});

test('all of it in the end', async () => {
    fs.rmSync(folder, { recursive: true });
    await server.stop();
});
await runTests();
