// Agents: conversations with tools that come back with every request, rendered anew; and what others'
// engines got wrong about the text of answers, in every dialect, streamed and whole.
// ctest: slow
import fs from 'node:fs';
import path from 'node:path';
import { assert, test, runTests, serve, post, eventually } from './harness.mjs';
import { dialects, each, ask as askOf } from './dialects.mjs';

const server = await serve('--spec', 'fixed');
const task = JSON.parse(fs.readFileSync(path.join(process.env.SOURCE,
    'models/demo/eval/tool_answer_think.jsonl'), 'utf8').split('\n')[0]);
const filler = 'The quick brown fox jumps over the lazy dog. '.repeat(60);
const declared = task.messages[0].tools, question = task.messages[1].content;
const result = task.messages[3].content, answer = task.answer;

const ask = (name, streamed, options, turns) => askOf(server, name, streamed, options, turns);

test('two turns with tools, thoughts and drafts: the first is found again', async () => {
    let n = 0;
    await each(async (name, streamed) => {
        // Each with a prompt of its own, so that nothing is found from the others.
        const o = { system: `Run ${n++}. ` + filler + task.messages[0].content, tools: declared,
            thinking: true };
        const one = await ask(name, streamed, o, [{ user: question }]);
        assert.equal(one.finish, dialects[name].finishes.calls);
        assert.equal(one.calls.length, 1);
        assert.deepEqual(JSON.parse(one.calls[0].arguments), task.messages[2].tool_calls[0].arguments);
        assert.ok(one.thought.length > 0);
        assert.ok(one.prompt >= 1000);
        const results = { results: [{ id: one.calls[0].id, text: result }] };
        const back = (turn) => ask(name, streamed, o, [{ user: question }, turn, results]);
        const two = await back(one);
        assert.equal(two.text, answer);
        assert.ok(two.cached > 0.8 * one.prompt, `${two.cached} of ${one.prompt}`);
        // Without the thought, and with the arguments written in another way, it is the same prompt.
        const other = JSON.stringify(JSON.parse(one.calls[0].arguments), null, 2);
        for (const turn of [{ ...one, thought: '' },
            { ...one, calls: [{ ...one.calls[0], arguments: other }] }]) {
            const again = await back(turn);
            assert.equal(again.prompt, two.prompt);
            assert.equal(again.text, two.text);
            assert.ok(again.cached >= one.prompt + one.answer - 64 - 1,
                `${again.cached} of ${one.prompt} + ${one.answer}`);
        }
        // What was edited counts as it is told.
        const edited = await back({ ...one, calls: [{ ...one.calls[0],
            arguments: '{"a": 1, "b": 2, "and": "much more than there was before"}' }] });
        assert.notEqual(edited.prompt, two.prompt);
        const stranger = await ask(name, streamed, o, [{ user: question },
            { ...one, thought: '', calls: [{ ...one.calls[0], id: 'call_elsewhere_0_0' }] },
            { results: [{ id: 'call_elsewhere_0_0', text: result }] }]);
        assert.ok(stranger.prompt < two.prompt, 'a thought that nobody brings is not there');
    });
    await eventually('the log', () => /turns_known=1\/1/.test(server.log) &&
        /turns_known=0\/1/.test(server.log));
});

test('several results, out of order, for calls that are known', async () => {
    const o = { system: filler + task.messages[0].content, tools: declared, thinking: true };
    const one = await ask('chat', false, o, [{ user: question }]);
    const call = one.calls[0];
    const two = { ...one, thought: '', calls: [call, { ...call, id: 'call_x' }] };
    const r = await ask('chat', false, o, [{ user: question }, two,
        { results: [{ id: 'call_x', text: 'B' }, { id: call.id, text: 'A' }] }]);
    assert.ok(r.prompt > one.prompt); // another turn than was sampled: rendered as told
});

test('when nothing is found the log says why', async () => {
    const off = await serve('--prefix-cache', 'off');
    for (let i = 0; i < 2; i++) {
        await post(off, '/v1/chat/completions', { max_tokens: 2,
            messages: [{ role: 'user', content: filler }] });
    }
    await eventually('the lines', () => off.log.match(/cached=0 .* cache=off/g)?.length === 2);
    await off.stop();
    await eventually('other reasons', () => /cache=nothing_alike/.test(server.log));
    await ask('chat', false, { length: 2 }, [{ user: 'Hi' }]);
    await eventually('and this', () => /cache=too_short/.test(server.log));
});

// ---- Text ----

test('stop texts over tokens and drafts, the same in all dialects', async () => {
    const story = 'Tell me a story about a fox.';
    const full = (await ask('chat', false, { length: 60 }, [{ user: story }])).text;
    for (const [from, to] of [[10, 14], [11, 30], [40, 41], [25, 60], [3, 4]]) {
        const stop = full.slice(from, to), want = full.slice(0, full.indexOf(stop));
        await each(async (name, streamed) => {
            const r = await ask(name, streamed, { length: 60, stop: [stop] }, [{ user: story }]);
            assert.equal(r.text, want, `${name} ${streamed} '${stop}'`);
            assert.equal(r.finish, dialects[name].finishes.text);
        });
    }
});

test('a call that begins before the thought is closed is a call', async () => {
    // The model may not close its thought, nor end, and likes what begins a call.
    const ids = async (text) => (await post(server, '/tokenize',
        { prompt: text, add_special_tokens: false })).json.tokens;
    const bias = { 1: -1000, [(await ids('<')).at(-1)]: 8 };
    for (const marker of ['</think>', '<think>', '<｜Assistant｜>', '<｜User｜>', '<｜System｜>']) {
        bias[(await ids(marker))[0]] = -1000;
    }
    const o = { tools: declared, system: task.messages[0].content, thinking: true, length: 80,
        more: { logit_bias: bias } };
    const seen = new Set();
    await each(async (name, streamed) => {
        const r = await ask(name, streamed, o, [{ user: question }]);
        assert.ok(r.thought.length > 10 && !r.thought.includes('DSML'));
        assert.ok(r.calls.length > 0, JSON.stringify(r));
        seen.add(JSON.stringify([r.thought, r.text,
            r.calls.map((c) => [c.name, JSON.stringify(JSON.parse(c.arguments))])]));
    });
    assert.equal(seen.size, 1, [...seen].join('\n'));
});

test('lengths cut thoughts, answers and calls alike', async () => {
    const o = { tools: declared, system: task.messages[0].content, thinking: true };
    const full = await ask('chat', false, o, [{ user: question }]);
    for (let length = 1; length < full.answer; length += 5) {
        const seen = new Set();
        await each(async (name, streamed) => {
            const r = await ask(name, streamed, { ...o, length }, [{ user: question }]);
            assert.equal(r.answer, length);
            assert.equal(r.finish, dialects[name].finishes.length);
            // A call that is cut off is text; whose dialect it is makes no difference.
            seen.add(JSON.stringify([r.thought, r.text, r.calls.length]));
        });
        assert.equal(seen.size, 1, [...seen].join('\n'));
    }
});

test('characters over several tokens arrive whole', async () => {
    const texts = ['汉字和日本語', '🦊🐉🏳️‍🌈', 'é è ñ ü ß', 'Ω≈ç√∫', '한국어'];
    for (const text of texts) {
        const messages = [{ user: 'Repeat after me: ' + text }];
        const o = { length: 80, more: { temperature: 1, seed: 3 } };
        const seen = new Set();
        await each(async (name, streamed) => {
            const r = await ask(name, streamed, o, messages);
            assert.ok(r.text.isWellFormed());
            seen.add(r.text);
        });
        assert.equal(seen.size, 1);
    }
});

test('a character that is cut off by the length is U+FFFD at the end alone', async () => {
    const t = await post(server, '/tokenize', { prompt: '🦊', add_special_tokens: false });
    assert.ok(t.json.count > 1, 'the demo model has no token for a fox');
    const first = t.json.tokens[0];
    await each(async (name, streamed) => {
        if (name === 'messages') return; // biases are OpenAI's
        const r = await ask(name, streamed, { length: 1,
            more: { logit_bias: { [first]: 1000 } } }, [{ user: 'x' }]);
        assert.equal(r.text, '\ufffd'.repeat(r.text.length));
        assert.ok(r.text.length >= 1);
    });
});

test('all of it in the end', () => server.stop());
await runTests();
