// What HTTP allows and few clients do, and what it does not allow: every way to ask is answered as RFC 9112
// says, and nothing that a client sends costs more than it should.
import { assert, test, runTests, serve, post, raw, request, model, metric, eventually } from './harness.mjs';

const server = await serve('--max-body', '64K', '-q');
const chatPath = '/v1/chat/completions';
const ask = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], thinking: false, max_tokens: 2 });
const json = 'Host: a\r\nContent-Type: application/json\r\n';

async function answer(text) {
    const c = raw(server);
    await c.send(text + 'GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    const got = await c.all();
    return { status: Number(/^HTTP\/1.1 (\d+) /.exec(got)?.[1]), got };
}

test('empty lines in front of a request: a few are skipped, many are none', async () => {
    for (let n = 0; n < 3; n++) {
        const { got } = await answer('\r\n'.repeat(n) + request('GET', '/health'));
        assert.deepEqual(got.match(/HTTP\/1.1 \d+/g), ['HTTP/1.1 200', 'HTTP/1.1 200']);
    }
    assert.equal((await answer('\r\n'.repeat(3) + request('GET', '/health'))).status, 400);
    assert.equal((await answer('\r\n'.repeat(30000))).status, 400);
    const slow = raw(server); // one at a time they are no way to be waited for
    for (let i = 0; i < 10 && !slow.closed; i++) await slow.send('\r\n');
    assert.match(await slow.all(), /^HTTP\/1.1 400 /);
});

test('who waits for 100 gets it with any body, and not without one', async () => {
    const chunked = raw(server);
    await chunked.send(`POST ${chatPath} HTTP/1.1\r\n${json}Transfer-Encoding: chunked\r\n` +
        'Expect: 100-continue\r\n\r\n');
    await chunked.until('HTTP/1.1 100 Continue\r\n\r\n');
    await chunked.send(`${ask.length.toString(16)}\r\n${ask}\r\n0\r\n\r\n`);
    await chunked.until('"completion_tokens":2');
    chunked.socket.destroy();
    const none = await answer(request('GET', '/health', '', 'Expect: 100-continue\r\n'));
    assert.equal(none.status, 200);
    const old = await answer(`POST ${chatPath} HTTP/1.0\r\n${json}Expect: 100-continue\r\n` +
        `Content-Length: ${ask.length}\r\n\r\n${ask}`);
    assert.equal(old.status, 200);
});

test('a target may name the host, but no other one', async () => {
    const whole = (target) => answer(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`);
    assert.equal((await whole('http://a/health')).status, 200);
    assert.equal((await whole('HTTP://A/health?x')).status, 200);
    for (const target of ['http://b/health', 'http://a:1/health', 'http://x@a/health', 'http:///health',
        '*', 'a:80', 'health']) {
        assert.equal((await whole(target)).status, 400, target);
    }
});

test('one length of a body', async () => {
    for (const lines of ['Content-Length: 3\r\nContent-Length: 3', 'Content-Length: 3, 3',
        'Content-Length: 0x3', 'Content-Length: 3\r\nTransfer-Encoding: chunked',
        'Transfer-Encoding : chunked', 'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked',
        'Transfer-Encoding:\x0bchunked']) {
        const r = await answer(`POST ${chatPath} HTTP/1.1\r\n${json}${lines}\r\n\r\n0\r\n\r\n`);
        assert.equal(r.status, 400, lines);
        assert.equal(r.got.match(/HTTP/g).length, 1, 'the connection ends there: ' + lines);
    }
    for (const coding of ['xchunked', 'gzip, chunked', 'chunked, identity', '"chunked"']) {
        const r = await answer(`POST ${chatPath} HTTP/1.1\r\n${json}Transfer-Encoding: ${coding}\r\n\r\n`);
        assert.equal(r.status, 501, coding);
    }
    for (const chunks of ['ffffffffffffffff\r\n', '-1\r\n', '+1\r\n', '0x1\r\n', ' 1\r\n', '1\nx\n0\n\n',
        '1\r\nxy\r\n', ';\r\n']) {
        const r = await answer(
            `POST ${chatPath} HTTP/1.1\r\n${json}Transfer-Encoding: chunked\r\n\r\n${chunks}`);
        assert.equal(r.status, 400, chunks);
    }
    const packed = await post(server, chatPath, ask, { 'Content-Encoding': 'gzip' });
    assert.equal(packed.status, 415);
});

test('a body that nobody asked for is not taken for a request', async () => {
    const hidden = 'GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n';
    const read = await answer(request('GET', '/health', hidden));
    assert.deepEqual(read.got.match(/HTTP\/1.1 \d+/g), ['HTTP/1.1 200', 'HTTP/1.1 200']);
    const refused = await answer(request('GET', '/nothing', hidden));
    assert.deepEqual(refused.got.match(/HTTP\/1.1 \d+/g), ['HTTP/1.1 404']);
    assert.match(refused.got, /\r\nConnection: close\r\n/);
});

test('all bodies together are bounded, however their lengths are told', async () => {
    for (const [lines, part] of [['Content-Length: 60000', 'x'.repeat(59000)],
        ['Transfer-Encoding: chunked', 'e678\r\n' + 'x'.repeat(59000)]]) {
        const clients = Array.from({ length: 30 }, () => raw(server));
        await Promise.all(clients.map((c) =>
            c.send(`POST ${chatPath} HTTP/1.1\r\n${json}${lines}\r\n\r\n${part}`)));
        await eventually('some are refused', () => clients.filter((c) => c.closed).length >= 13);
        const refused = clients.filter((c) => c.got.startsWith('HTTP/1.1 429 '));
        assert.ok(refused.length >= 12 && refused.length < 15, `${lines}: ${refused.length} of 30`);
        clients.forEach((c) => c.socket.destroy());
        assert.ok(refused.every((c) => c.got.includes('Retry-After: 1\r\n')));
        await eventually('there is room again', async () =>
            (await post(server, chatPath, ask)).status === 200);
    }
});

test('names in paths are unescaped, and are only names', async () => {
    const get = async (where) => {
        const { status, got } = await answer(`GET ${where} HTTP/1.1\r\nHost: a\r\n\r\n`);
        return { status, body: JSON.parse(got.slice(got.indexOf('\r\n\r\n') + 4,
            got.indexOf('HTTP', 5)).trim()) };
    };
    const escaped = await get('/v1/models/' + encodeURIComponent(model));
    assert.equal(escaped.status, 200, JSON.stringify(escaped.body));
    assert.equal(escaped.body.id, model);
    assert.equal((await get('/v1/models/%64emo')).body.id, 'demo');
    for (const name of ['demo%00', 'demo%0', 'demo%', 'demo%zz', 'demo' + 'o'.repeat(400), '%22%0a']) {
        const r = await get('/v1/models/' + name);
        assert.equal(r.status, 404, name);
        assert.equal(r.body.error.code, 'model_not_found');
    }
    assert.equal((await get('/page/..%2f..%2fetc/passwd')).status, 404);
});

test('errors have the form of the path\'s dialect', async () => {
    for (const [method, where, status] of [['GET', '/v1/messages', 405], ['POST', '/anthropic/x', 404]]) {
        const r = await fetch(server.base + where, { method });
        assert.equal(r.status, status);
        const body = await r.json();
        assert.equal(body.type, 'error');
        assert.ok(body.error.type && body.error.message);
        assert.match(body.request_id, /^req_/);
        assert.equal(r.headers.get('request-id'), body.request_id);
    }
    const r = await fetch(server.base + '/v1/responses');
    assert.equal(r.headers.get('allow'), 'POST');
    assert.equal((await r.json()).error.code, 'method_not_allowed');
});

test('heads that never end have a bound together, and keep nobody out', async () => {
    const wide = await serve('--read-timeout', '600', '-q'), want = 1300; // of nearly 64 KiB each: more than 64 MiB
    const text = 'GET /health HTTP/1.1\r\nHost: a\r\n' + ('X: ' + 'x'.repeat(1000) + '\r\n').repeat(60);
    const crowd = [];
    for (let i = 0; i < want; i++) {
        const c = raw(wide);
        crowd.push(c);
        await c.send(text);
    }
    await eventually('some are refused', () => crowd.some((c) => c.got));
    const refused = crowd.filter((c) => c.got);
    for (const c of refused) assert.match(c.got, /^HTTP\/1.1 429 [^]*Retry-After: 1\r\n/);
    assert.equal((await fetch(wide.base + '/health')).status, 200);
    const patient = crowd.find((c) => !c.got && !c.closed); // what was taken is not given up for it
    await patient.send('\r\n');
    await patient.until('{"status":"ok"}');
    crowd.forEach((c) => c.socket.destroy());
    await eventually('they are gone', async () => await metric(wide, 'deepinfer:http_connections') <= 2);
    assert.equal((await fetch(wide.base + '/health')).status, 200);
    await wide.stop();
});

test('all of it in the end', () => server.stop());
await runTests();
