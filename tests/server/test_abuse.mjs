// Clients that are broken, slow, gone or hostile: each is answered or dropped, and the next is served.
// ctest: slow threads
import { assert, test, runTests, serve, post, raw, request, sleep, metric, eventually }
    from './harness.mjs';

const server = await serve('--max-batch', '4', '--read-timeout', '1', '--write-timeout', '2',
    '--idle-timeout', '3', '--keep-alive', '0.3', '--max-body', '1M', '--max-queue', '40', '-q');
const story = { messages: [{ role: 'user', content: 'Tell me a story about a fox.' }],
    thinking: false, temperature: 0 };
const forever = { ...story, max_tokens: 3000, logit_bias: { 1: -1000 } }; // the end token is banned
const body = (o) => JSON.stringify(o);
const chatPath = '/v1/chat/completions';

async function wellNow() {
    const { status, json } = await post(server, chatPath, { ...story, max_tokens: 3 });
    assert.equal(status, 200);
    assert.equal(json.usage.completion_tokens, 3);
}
const idle = () => eventually('nothing runs', async () =>
    (await metric(server, 'deepinfer:num_requests_running')) === 0 &&
    (await metric(server, 'deepinfer:num_requests_waiting')) === 0);

test('a head one byte at a time is read, one that never ends is not waited for', async () => {
    const good = raw(server);
    for (const byte of request('GET', '/health')) await good.send(byte);
    await good.until('{"status":"ok"}');
    good.socket.destroy();
    const slow = raw(server);
    for (let i = 0; i < 30 && !slow.closed; i++) {
        await slow.send('GET /health HTTP/1.1\r\nHost: a\r\nX: '[i] ?? 'x');
        await sleep(100);
    }
    assert.match(await slow.all(), /^HTTP\/1.1 408 /);
    await wellNow();
});

test('a body that stops is not waited for', async () => {
    const c = raw(server);
    await c.send(`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
        'Content-Length: 1000000\r\n\r\n{"messages"');
    assert.match(await c.all(40), /^HTTP\/1.1 408 /);
    await wellNow();
});

test('what came of a body is time for the rest', async () => {
    const c = raw(server), text = body({ ...story, max_tokens: 3 }), blanks = ' '.repeat(60 * 16384);
    await c.send(`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
        `Content-Length: ${blanks.length + text.length}\r\n\r\n${blanks}`); // a minute more
    await sleep(2000);
    await c.send(text);
    await c.until('"completion_tokens":3');
    c.socket.destroy();
});

test('idle connections are closed, silently', async () => {
    const c = raw(server);
    assert.equal(await c.all(), '');
    const used = raw(server);
    await used.send(request('GET', '/health'));
    const got = await used.all();
    assert.match(got, /^HTTP\/1.1 200 OK/);
    assert.equal(got.match(/HTTP/g).length, 1);
});

test('heads that are wrong or too large', async () => {
    const cases = [
        ['\x00\x01\x02\r\n\r\n', 400], ['GET /health HTTP/1.1\nHost: a\n\n', 400],
        ['GET /health HTTP/3.0\r\nHost: a\r\n\r\n', 505],
        ['GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n', 400],
        ['GET /health HTTP/1.1\r\nHost: a\r\nX: ' + 'y'.repeat(70000), 431],
        ['GET /' + 'a'.repeat(9000) + ' HTTP/1.1\r\nHost: a\r\n\r\n', 414],
        [`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
            'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400],
        [`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
            'Transfer-Encoding: chunked\r\n\r\nzz\r\n', 400],
        ['\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'.padEnd(200, 'z') + '\n', 400],
    ];
    for (const [text, status] of cases) {
        const c = raw(server);
        await c.send(Buffer.from(text, 'latin1'));
        assert.match(await c.all(), new RegExp(`^HTTP/1.1 ${status} `), text.slice(0, 40));
    }
    await wellNow();
});

test('bodies that are too large: told before they are read, and while', async () => {
    const told = raw(server);
    await told.send(`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
        'Content-Length: 104857600\r\n\r\n');
    assert.match(await told.all(), /^HTTP\/1.1 413 /);
    const whole = raw(server); // 100 MB come all the same
    const block = Buffer.alloc(1 << 20, 0x20);
    await whole.send(`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
        'Content-Length: 104857600\r\n\r\n');
    for (let i = 0; i < 100 && !whole.closed; i++) {
        await Promise.race([whole.send(block), sleep(500)]);
    }
    assert.match(await whole.all(), /^HTTP\/1.1 413 /);
    const chunked = raw(server);
    await chunked.send(`POST ${chatPath} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n` +
        'Transfer-Encoding: chunked\r\n\r\n');
    for (let i = 0; i < 20 && !chunked.closed; i++) {
        await Promise.race([chunked.send('10000\r\n' + 'a'.repeat(0x10000) + '\r\n'), sleep(500)]);
    }
    assert.match(await chunked.all(), /^HTTP\/1.1 413 /);
    await wellNow();
});

test('bodies that are no requests', async () => {
    const deep = '['.repeat(100000), many = '[' + '0,'.repeat(300000) + '0]';
    for (const text of [deep, '{"messages": ' + deep, many, '{"messages": ' + many + '}',
        '{"' + 'a'.repeat(500000) + '": 1}', '{"a": "' + '\\'.repeat(99999), '"'.repeat(100001)]) {
        const r = await post(server, chatPath, text);
        assert.equal(r.status, 400, r.text.slice(0, 200));
        assert.ok(r.text.length < 3000);
    }
    const keys = '{' + Array.from({ length: 60000 }, (_, i) => `"k${i}":0`).join(',') + '}';
    assert.equal((await post(server, chatPath, keys)).status, 400);
    for (const bytes of ['\xff\xfe', '\xc0\xaf', '\xed\xa0\x80', '\xf5\x80\x80\x80', '\xe2\x82']) {
        const text = Buffer.from(`{"messages": [{"role": "user", "content": "${bytes}"}]}`, 'latin1');
        const c = raw(server);
        await c.send(request('POST', chatPath, ' '.repeat(text.length)).slice(0, -text.length));
        await c.send(text);
        await c.until('invalid UTF-8');
        assert.match(c.got, /^HTTP\/1.1 400 /);
        c.socket.destroy();
    }
    for (const escape of ['\\ud800', '\\udc00\\ud800', '\\u12']) {
        const r = await post(server, chatPath,
            `{"messages": [{"role": "user", "content": "${escape}"}]}`);
        assert.equal(r.status, 400);
    }
    const nul = await post(server, chatPath,
        '{"messages": [{"role": "user", "content": "a\\u0000b"}], "max_tokens": 2}');
    assert.equal(nul.status, 200);
    await wellNow();
});

test('requests one behind the other without waiting', async () => {
    const c = raw(server);
    const ask = body({ ...story, max_tokens: 2 });
    await c.send(request('GET', '/health') + request('POST', chatPath, ask) +
        request('GET', '/nothing') + request('POST', chatPath, ask, 'Connection: close\r\n'));
    const got = await c.all();
    assert.deepEqual(got.match(/HTTP\/1.1 \d+/g),
        ['HTTP/1.1 200', 'HTTP/1.1 200', 'HTTP/1.1 404', 'HTTP/1.1 200']);
});

test('a client that waits for 100 gets it, HTTP/1.0 an end', async () => {
    const c = raw(server);
    const ask = body({ ...story, max_tokens: 2 });
    await c.send(request('POST', chatPath, ask, 'Expect: 100-continue\r\n').slice(0, -ask.length));
    await c.until('100 Continue\r\n\r\n');
    await c.send(ask);
    await c.until('"completion_tokens":2');
    c.socket.destroy();
    const old = raw(server);
    await old.send(`POST ${chatPath} HTTP/1.0\r\nContent-Type: application/json\r\n` +
        `Content-Length: ${ask.length + 15}\r\n\r\n${ask.slice(0, -1)}, "stream": true}`.replace(
            /Content-Length: \d+/, `Content-Length: ${ask.length + 16}`));
    const got = await old.all();
    assert.match(got, /^HTTP\/1.1 200 /);
    assert.ok(!got.includes('Transfer-Encoding'));
    assert.ok(got.endsWith('data: [DONE]\n\n'));
});

test('clients that leave: the work for them ends, streamed or not', async () => {
    await idle();
    const before = await metric(server, 'deepinfer:generation_tokens_total');
    for (const streamed of [true, false]) {
        const clients = Array.from({ length: 12 }, () => raw(server));
        for (const c of clients) {
            await c.send(request('POST', chatPath, body({ ...forever, stream: streamed })));
        }
        await eventually('all are there', async () =>
            (await metric(server, 'deepinfer:num_requests_running')) +
            (await metric(server, 'deepinfer:num_requests_waiting')) === 12);
        clients.forEach((c, i) => (i % 2 ? c.socket.destroy() : c.socket.end()));
        await idle();
    }
    const after = await metric(server, 'deepinfer:generation_tokens_total');
    assert.ok(after - before < 12 * 3000, 'they did not run to their ends');
    await wellNow();
});

test('a thousand cancellations', async () => {
    for (let round = 0; round < 25; round++) {
        const clients = Array.from({ length: 40 }, () => raw(server));
        await Promise.all(clients.map((c, i) =>
            c.send(request('POST', chatPath, body({ ...forever, stream: i % 3 > 0, n: 1 + (i % 2) })))));
        await sleep(round % 5 * 7);
        clients.forEach((c) => c.socket.resetAndDestroy());
    }
    await idle();
    await wellNow();
    assert.equal(await metric(server, 'deepinfer:http_connections') < 10, true);
});

test('a reader that stops is given up, and holds nobody up', async () => {
    const c = raw(server);
    c.socket.pause();
    // Much text: 20 rivals of each of 3000 tokens are several megabytes.
    await c.send(request('POST', chatPath,
        body({ ...forever, stream: true, logprobs: true, top_logprobs: 20, n: 4 })));
    await sleep(300);
    await wellNow();
    await eventually('it is given up', async () =>
        (await metric(server, 'deepinfer:num_requests_running')) === 0, 60);
    c.socket.destroy();
    await wellNow();
});

test('signs of life while a request waits and while an answer is made', async () => {
    const blanks = '\r\n1\r\n\n\r\n1\r\n\n\r\n'; // in chunks
    // Answers in one piece: a stream that nobody reads, as on a busy machine, would be given up. Bodies are
    // read side by side, so who comes next waits only once these five are there.
    const crowd = Array.from({ length: 5 }, () => raw(server));
    for (const c of crowd) await c.send(request('POST', chatPath, body(forever)));
    await eventually('four are answered, one waits', async () =>
        (await metric(server, 'deepinfer:num_requests_running')) === 4 &&
        (await metric(server, 'deepinfer:num_requests_waiting')) === 1);
    const streamed = raw(server), whole = raw(server);
    await streamed.send(request('POST', chatPath, body({ ...forever, stream: true })));
    await whole.send(request('POST', chatPath, body(forever)));
    await streamed.until('text/event-stream');
    await streamed.until(': keep-alive\n\n');
    assert.match(streamed.got, /\r\n\r\ne\r\n: keep-alive\n\n/, 'before its first token');
    for (const c of [...crowd, whole]) {
        await c.until(blanks);
        assert.match(c.got, /^HTTP\/1.1 200 /);
    }
    [...crowd, streamed, whole].forEach((c) => c.socket.destroy());
    await idle();
});

test('too many are told when to come again', async () => {
    const crowd = [];
    for (let i = 0; i < 44; i++) {
        crowd.push(raw(server));
        await crowd.at(-1).send(request('POST', chatPath, body({ ...forever, stream: true })));
    }
    await eventually('it is full', async () => (await fetch(server.base + '/ready')).status === 503);
    const r = await post(server, chatPath, story);
    assert.equal(r.status, 429);
    assert.ok(Number(r.headers.get('retry-after')) >= 1);
    assert.equal(r.json.error.type, 'rate_limit_error');
    assert.equal((await fetch(server.base + '/health')).status, 200);
    crowd.forEach((c) => c.socket.destroy());
    await idle();
    assert.equal((await fetch(server.base + '/ready')).status, 200);
    await wellNow();
});

test('clients take turns', async () => {
    const ended = [], all = [];
    const ask = async (who, address) => {
        const c = raw(server, { localAddress: address });
        await c.send(request('POST', chatPath, body({ ...forever, max_tokens: 60 })));
        all.push(c.until('"completion_tokens"', 120).then(() => {
            ended.push(who);
            c.socket.destroy();
        }));
    };
    for (let i = 0; i < 36; i++) await ask('many', '127.0.0.1');
    for (let i = 0; i < 2; i++) await ask('few', '127.0.0.2');
    await Promise.all(all);
    assert.equal(ended.length, 38);
    assert.ok(ended.lastIndexOf('few') < 30, ended.join(' '));
    await idle();
});

test('pages of other sites', async () => {
    const r = await post(server, chatPath, story, { Origin: 'http://evil.example' });
    assert.equal(r.status, 403);
    const own = await post(server, chatPath, { ...story, max_tokens: 2 },
        { Origin: `http://127.0.0.1:${server.port}` });
    assert.equal(own.status, 200);
    assert.equal(own.headers.get('access-control-allow-origin'), null);
    // A name that was made to point here: its page's origin looks like ours.
    const rebound = raw(server);
    await rebound.send(request('POST', chatPath, body(story), 'Origin: http://evil.example\r\n')
        .replace('Host: localhost', 'Host: evil.example'));
    await rebound.until('HTTP/1.1 403');
});

test('all of it in the end', () => server.stop());
await runTests();
