// What went wrong for others with requests, and how streams are cut on their way: every kind in chat
// completions, responses and messages, streamed and whole. What tokens become is in test_dialects.c;
// conversations of agents, drafts and stop texts with the model itself are in test_agents.mjs.
// ctest: slow
import { assert, test, runTests, serve, post, raw, request, metric, eventually, parseEvents, joinChat }
    from './harness.mjs';
import { dialects, each, ask as askOf } from './dialects.mjs';

const server = await serve('--context', '8192', '--max-batch', '1', '--keep-alive', '0.1',
    '--spec', 'fixed');
const ask = (name, streamed, options, turns) => askOf(server, name, streamed, options, turns);
const question = 'What is 12 + 13?', SUM = '12 + 13 = 25';
const plain = (d) => d.body({ thinking: false, length: 30 }, [{ user: question }]);
const text = (o) => JSON.stringify(o);
const idle = () => eventually('nothing runs', async () =>
    (await metric(server, 'deepinfer:num_requests_running')) === 0 &&
    (await metric(server, 'deepinfer:num_requests_waiting')) === 0);

// A body with one member more, written as it is: also what is no JSON.
const withMember = (body, key, value) => {
    const { [key]: _, ...others } = JSON.parse(text(body));
    return text(others).slice(0, -1) + `,"${key}":${value}}`;
};

// ---- Values ----

// What no field takes. Those that are not even JSON cannot be told by field.
const never = ['true', 'false', '"1"', '""', '[]', '[1]', '{}', '1e999', '-1e999', '1e400', '-1'];
const noJson = ['NaN', 'Infinity', '-Infinity', 'nan', '+1', '.5', '1.', '0x10', 'undefined'];
const whole = ['1.5', '1e300', '99999999999999999999', '-9223372036854775809', '-0.5'];
const fields = {
    temperature: ['-0.01', '2.01', '1e38', '1e308', '99999999999999999999'],
    top_p: ['-0.01', '1.01', '1e38', '1e308'],
    min_p: ['-0.01', '1.01', '1e308'],
    top_k: [...whole, '-2', '2147483648'],
    seed: whole,
    repetition_penalty: ['0', '1e308', '1e38', '101'],
};
const penalties = ['-2.01', '2.01', '1e308', '-1e308'];
const own = {
    chat: { n: ['0', '129', ...whole], max_tokens: ['0', ...whole],
        max_completion_tokens: ['0', ...whole], presence_penalty: penalties,
        frequency_penalty: penalties },
    responses: { max_output_tokens: ['0', ...whole], presence_penalty: penalties,
        frequency_penalty: penalties },
    messages: { max_tokens: ['0', ...whole] },
};
const negative = ['presence_penalty', 'frequency_penalty', 'top_k']; // -1 may be: of the last, all

test('impossible values are refused with their field, in every dialect, and harm nobody', async () => {
    let n = 0;
    await each(async (name, streamed) => {
        const d = dialects[name], body = { ...plain(d), stream: streamed };
        const where = (r) => name === 'messages' ? r.json.error.message : r.json.error.param;
        for (const [key, values] of Object.entries({ ...fields, ...own[name] })) {
            for (const value of [...never, ...values]) {
                if (value === '-1' && negative.includes(key)) continue;
                const r = await post(server, d.path, withMember(body, key, value));
                assert.equal(r.status, 400, `${name} ${key}: ${value} gave ${r.text}`);
                assert.match(r.headers.get('content-type'), /^application\/json/);
                assert.ok(where(r)?.startsWith(key), `${name} ${key}: ${value} gave ${r.text}`);
                n++;
            }
        }
        for (const value of noJson) {
            const r = await post(server, d.path, withMember(body, 'temperature', value));
            assert.equal(r.status, 400, value);
            assert.match(r.json.error.message, /line 1, column/);
        }
        assert.equal((await ask(name, streamed, { thinking: false }, [{ user: question }])).text, SUM);
    });
    assert.ok(n > 700);
});

test('null is the default, and temperature 0 is greedy whatever top_p', async () => {
    await each(async (name, streamed) => {
        const one = (more) => ask(name, streamed, { thinking: false, length: 30, more },
            [{ user: question }]);
        const keys = Object.keys({ ...fields, ...own[name] })
            .filter((k) => k !== 'temperature' && !(name === 'messages' && k === 'max_tokens'));
        assert.equal((await one({ temperature: null, top_k: 1 })).text, SUM);
        for (const key of keys) assert.equal((await one({ [key]: null })).text, SUM, key);
        assert.equal((await one(Object.fromEntries(keys.map((k) => [k, null])))).text, SUM);
        for (const top_p of [0, 1e-30, 0.1, 1]) {
            assert.equal((await one({ temperature: 0, top_p })).text, SUM);
        }
    });
});

test('a length that does not fit is told with both numbers', async () => {
    await each(async (name, streamed) => {
        const d = dialects[name];
        const body = d.body({ thinking: false, length: 20000 }, [{ user: question }]);
        const r = await post(server, d.path, { ...body, stream: streamed });
        assert.equal(r.status, 400);
        assert.match(r.json.error.message, name === 'messages'
            ? /exceed context limit: \d+ \+ 20000 > 8192, / : /length is 8192 tokens.*requested 20\d\d\d /);
    });
});

// ---- Signs of life ----

// A tool whose call takes long: its one argument has no end before many characters.
const slowTool = (least) => ({ name: 'write', description: 'Writes.', strict: true, parameters: {
    type: 'object', additionalProperties: false, required: ['text'],
    properties: { text: { type: 'string', minLength: least, maxLength: least + 100 } } } });
const required = { chat: 'required', responses: 'required', messages: { type: 'any' } };
// Answers that do not end by themselves: the end token is banned, or a long string is asked for.
const endless = {
    chat: (o) => ({ ...o, logit_bias: { 1: -1000 } }),
    responses: (o) => ({ ...o, logit_bias: { 1: -1000 } }),
    messages: (o) => ({ ...o, output_config: { format: { type: 'json_schema',
        schema: { type: 'string', minLength: 9000 } } } }),
};

// Reads an answer as it comes: {signs, json or events}.
function listen(name, streamed, body) {
    const d = dialects[name], c = raw(server);
    const sign = !streamed ? '\r\n1\r\n\n\r\n' : name === 'messages' ? 'event: ping\n' : ': keep-alive\n\n';
    c.signs = () => c.got.split(sign).length - 1;
    c.answer = () => {
        const [head, ...rest] = c.got.split('\r\n\r\n');
        assert.match(head, /^HTTP\/1.1 200 /);
        let at = 0, chunks = rest.join('\r\n\r\n'), out = '';
        while (/chunked/i.test(head)) {
            const end = chunks.indexOf('\r\n', at), size = parseInt(chunks.slice(at, end), 16);
            if (!(size > 0)) break;
            out += chunks.slice(end + 2, end + 2 + size);
            at = end + 2 + size + 2;
        }
        return Buffer.from(out || chunks, 'latin1').toString();
    };
    c.begun = c.send(request('POST', d.path, text({ ...body, ...(streamed ? { ...d.stream,
        stream: true } : {}) }), 'Connection: close\r\n'));
    return c;
}

function understand(name, streamed, got) {
    const d = dialects[name];
    if (!streamed) return d.whole(JSON.parse(got));
    return d.streamed(parseEvents(got).events.filter((e) => e.event !== 'ping'));
}

test('signs of life while a request waits, by the clock', async () => {
    await each(async (name, streamed) => {
        const before = listen('chat', true, endless.chat({ messages: [{ role: 'user', content: 'Go on.' }] }));
        await before.until('"reasoning_content"');
        const c = listen(name, streamed, plain(dialects[name]));
        await eventually('signs', () => c.signs() >= 3);
        before.socket.destroy();
        await c.all();
        assert.equal(understand(name, streamed, c.answer()).text, SUM);
    });
});

test('signs of life while a long prompt is read', async () => {
    let n = 0;
    await each(async (name, streamed) => {
        const long = `Run ${n++}. ` + 'The quick brown fox jumps over the lazy dog. '.repeat(220);
        const c = listen(name, streamed, dialects[name].body({ thinking: false, length: 2 },
            [{ user: long }]));
        await c.all(60);
        const got = understand(name, streamed, c.answer());
        assert.ok(got.prompt > 2000);
        assert.ok(c.signs() >= 2, `${name} ${streamed}: ${c.signs()} signs`);
    });
});

test('signs of life while a call is withheld', async () => {
    await each(async (name, streamed) => {
        const c = listen(name, streamed, { ...dialects[name].body({ thinking: false, length: 2000,
            tools: [slowTool(1200)] }, [{ user: 'Write.' }]),
        tool_choice: required[name] });
        await c.all(60);
        const got = understand(name, streamed, c.answer());
        assert.ok(JSON.parse(got.calls[0].arguments).text.length >= 1200);
        assert.ok(c.signs() >= 2, `${name} ${streamed}: ${c.signs()} signs`);
    });
});

// ---- Clients that leave ----

test('who leaves leaves nothing behind: waiting, in the prompt, in the answer, in a call', async () => {
    await idle();
    const done = await metric(server, 'deepinfer:generation_tokens_total');
    let n = 0;
    await each(async (name, streamed) => {
        const d = dialects[name];
        const long = `Leave ${n++}. ` + 'A wise crow sat by the river and looked at it. '.repeat(200);
        const running = async () => (await metric(server, 'deepinfer:num_requests_running')) > 0;
        const bodies = [
            endless[name](d.body({ thinking: false, length: 6000 }, [{ user: 'Go on.' }])),
            { ...d.body({ thinking: false, length: 6000, tools: [slowTool(9000)] },
                [{ user: 'Write.' }]),
                tool_choice: required[name] },
            endless[name](d.body({ thinking: false, length: 4000 }, [{ user: long }]))];
        for (const body of bodies) {
            const c = listen(name, streamed, body), waiting = listen(name, streamed, body);
            await eventually(`both are there: ${name}, streamed: ${streamed}`,
                async () => await running() &&
                    (await metric(server, 'deepinfer:num_requests_waiting')) === 1);
            waiting.socket.destroy();
            c.socket.end(); // and half closed
            await idle();
        }
    });
    const after = await metric(server, 'deepinfer:generation_tokens_total');
    assert.ok(after - done < 18 * 1500, `they did not go on: ${after - done} tokens`);
    // All of the pool can still be had: a prompt that needs most of it.
    const all = await ask('chat', false, { thinking: false, length: 2 },
        [{ user: 'fox '.repeat(7000) }]);
    assert.ok(all.prompt > 6500);
});

// ---- Conversations that come back ----

test('a shorter prompt than what was read is found; where its windows are not, the log says so', async () => {
    const bounded = await serve('--replay', 'bounded');
    let n = 0;
    const shorter = async (at, name, streamed) => {
        const part = (k) => `Part ${k} of run ${n}. ` + 'The old fox went on its way. '.repeat(60);
        const turns = [{ user: part(1) + part(2) }, { text: 'Yes.', calls: [] }, { user: part(3) }];
        n++;
        const o = { thinking: false, length: 2 };
        const long = await askOf(at, name, streamed, o, turns);
        assert.ok(long.prompt > 1000);
        return askOf(at, name, streamed, o, turns.slice(0, 1));
    };
    await each(async (name, streamed) => {
        const r = await shorter(bounded, name, streamed);
        assert.ok(r.cached > 0.8 * r.prompt, text(r));
    });
    await bounded.stop();
    const exact = await shorter(server, 'chat', false);
    assert.equal(exact.cached, 0);
    await eventually('the line', () => / cached=0 .* cache=no_windows found=960 /.test(server.log));
});

// ---- Streams, cut ----

// Texts that the answer is held to.
const said = '汉字和日本語 🦊🐉🏳️‍🌈 é < ñ <b> Ω';
const held = {
    chat: { structured_outputs: { choice: [said] } },
    responses: { structured_outputs: { choice: [said] } },
    messages: { output_config: { format: { type: 'json_schema', schema: { const: said } } } },
};
const saidBy = (name, it) => name === 'messages' ? JSON.parse(it) : it;

test('characters of several tokens arrive as they are', async () => {
    await each(async (name, streamed) => {
        const r = await ask(name, streamed, { thinking: false, length: 200, more: held[name] },
            [{ user: 'Repeat it.' }]);
        assert.equal(saidBy(name, r.text), said);
    });
});

// The bytes of a stream in each dialect: with a thought and an answer, many characters, and a call.
async function* streams() {
    for (const [name, d] of Object.entries(dialects)) {
        const bodies = [d.body({ thinking: true, length: 80 }, [{ user: question }]),
            d.body({ thinking: false, length: 200, more: held[name] }, [{ user: 'Repeat it.' }]),
            { ...d.body({ thinking: false, length: 500, tools: [{ name: 'note', description: 'n',
                strict: true, parameters: { type: 'object', additionalProperties: false,
                    required: ['a'], properties: { a: { const: said } } } }] },
            [{ user: 'Note it.' }]), tool_choice: required[name] }];
        for (const body of bodies) {
            const r = await fetch(server.base + d.path, { method: 'POST',
                headers: { 'Content-Type': 'application/json' },
                body: text({ ...JSON.parse(text(body)), stream: true, ...d.stream }) });
            assert.equal(r.status, 200);
            yield { name, bytes: Buffer.from(await r.arrayBuffer()) };
        }
    }
}

// What events up to here have said.
function saidIn(name, events) {
    if (name === 'chat') {
        return events.map((e) => e.data.choices?.[0]?.delta ?? {}).map((d) =>
            (d.reasoning_content ?? '') + (d.content ?? '') +
            (d.tool_calls ?? []).map((c) => c.function.arguments).join('')).join('');
    }
    return events.map((e) => e.data.delta).map((d) => typeof d === 'string' ? d
        : d?.text ?? d?.thinking ?? d?.partial_json ?? '').join('');
}

test('a stream that is cut at any byte is whole characters and whole events', async () => {
    let n = 0, sawSaid = 0;
    for await (const { name, bytes } of streams()) {
        const strict = () => new TextDecoder('utf-8', { fatal: true });
        const all = strict().decode(bytes), { events } = parseEvents(all);
        const joined = saidIn(name, events);
        if (joined.includes(said)) sawSaid++;
        assert.ok(joined.length > 10);
        let known = '', complete = 0;
        for (let cut = 0; cut <= bytes.length; cut++, n++) {
            // Two pieces of the network are the same as one,
            const decoder = strict();
            const first = decoder.decode(bytes.subarray(0, cut), { stream: true });
            assert.equal(first + decoder.decode(bytes.subarray(cut)), all);
            // and of the first alone all whole events can be read: valid by themselves, and a beginning.
            const end = first.lastIndexOf('\n\n') + 2;
            if (end < 2 || end === known.length) continue;
            const here = strict().decode(bytes.subarray(Buffer.byteLength(known), Buffer.byteLength(first.slice(0, end))));
            known += here;
            complete += parseEvents(here).events.length;
            const now = saidIn(name, events.slice(0, complete));
            assert.ok(now.isWellFormed() && !now.includes('\ufffd'));
            assert.ok(joined.startsWith(now));
        }
        assert.equal(known, all);
        assert.equal(complete, events.length);
        if (name === 'chat') joinChat(events);
    }
    assert.equal(sawSaid, 6);
    assert.ok(n > 20000);
});

test('stop texts in drafts: text, tokens, log-probabilities and usage end at one place', async () => {
    const story = [{ user: 'Tell me a story about a fox.' }];
    const o = { thinking: false, length: 40 };
    const chat = (streamed, stop) => ask('chat', streamed, { ...o, stop,
        more: { logprobs: true, top_logprobs: 1 } }, story);
    const full = (await chat(false, undefined)).text;
    for (let from = 1; from + 9 < full.length; from += 7) {
        const stop = full.slice(from, from + 4 + from % 6), want = full.slice(0, full.indexOf(stop));
        const seen = new Set();
        await each(async (name, streamed) => {
            const r = await ask(name, streamed, { ...o, stop: [stop] }, story);
            assert.equal(r.text, want);
            seen.add(r.answer);
            if (name !== 'chat') return;
            const t = await chat(streamed, [stop]);
            assert.equal(t.text, want);
            seen.add(t.answer).add(t.tokens.length);
            const spelled = t.tokens.map((x) => x.token);
            assert.ok(spelled.join('').startsWith(want));
            assert.ok(want === '' || spelled.slice(0, -1).join('').length < want.length);
        });
        assert.equal(seen.size, 1, [...seen].join(' '));
    }
    assert.ok((await metric(server, 'deepinfer:spec_decode_num_accepted_tokens_total')) > 0);
});

test('all of it in the end', () => server.stop());
await runTests();
