// What an operator does: keys, reload, metrics, log lines, CORS, the way down.
// ctest: slow
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { execFileSync } from 'node:child_process';
import { assert, test, runTests, serve, post, raw, request, metric, sleep, eventually, scratch, model }
    from './harness.mjs';

const folder = scratch(), keys = path.join(folder, 'keys');
const story = { messages: [{ role: 'user', content: 'Tell me a story about a fox.' }],
    thinking: false, temperature: 0, max_tokens: 5 };
const chatPath = '/v1/chat/completions';
const bearer = (key) => ({ Authorization: 'Bearer ' + key });

fs.writeFileSync(keys, '# who may ask\nsecret-alice alice\nsecret-bob bob concurrency=1\n' +
    'secret-carol carol rpm=2   # slowly\n');
const server = await serve('--api-keys', keys, '--cors', 'https://a.example,https://b.example');

test('keys', async () => {
    const none = await post(server, chatPath, story);
    assert.equal(none.status, 401);
    assert.equal(none.json.error.code, 'invalid_api_key');
    assert.equal(none.headers.get('www-authenticate'), 'Bearer');
    for (const key of ['', 'secret', 'secret-alice2', 'secret-alicf']) {
        assert.equal((await post(server, chatPath, story, bearer(key))).status, 401);
    }
    assert.equal((await post(server, chatPath, story, bearer('secret-alice'))).status, 200);
    assert.equal((await post(server, chatPath, story, { 'X-Api-Key': 'secret-alice' })).status, 200);
    for (const where of ['/health', '/ready', '/version', '/metrics']) {
        assert.equal((await fetch(server.base + where)).status, 200);
    }
    assert.equal((await fetch(server.base + '/v1/models')).status, 401);
    assert.match(server.log, /event=request .* key=alice/);
    assert.ok(!server.log.includes('secret'), 'no key in the log');
});

test('limits of a key', async () => {
    const c = raw(server);
    await c.send(request('POST', chatPath,
        JSON.stringify({ ...story, max_tokens: 3000, logit_bias: { 1: -1000 }, stream: true }),
        'Authorization: Bearer secret-bob\r\n'));
    await c.until('data: ');
    const busy = await post(server, chatPath, story, bearer('secret-bob'));
    assert.equal(busy.status, 429);
    assert.ok(busy.headers.get('retry-after'));
    c.socket.destroy();
    await eventually('the place is free again', async () =>
        (await post(server, chatPath, story, bearer('secret-bob'))).status === 200);
    const statuses = [];
    for (let i = 0; i < 3; i++) {
        const r = await post(server, chatPath, story, bearer('secret-carol'));
        statuses.push(r.status);
        if (r.status === 429) assert.ok(Number(r.headers.get('retry-after')) > 10);
    }
    assert.deepEqual(statuses, [200, 200, 429]);
});

test('clients take turns, however much one of them sends and whoever came first', async () => {
    const own = path.join(folder, 'turns'), names = ['alice', 'bob', 'carol'];
    fs.writeFileSync(own, names.map((name) => `secret-${name} ${name}\n`).join(''));
    const one = await serve('--api-keys', own, '--max-batch', '1', '--prefix-cache', 'off');
    const long = { ...story, max_tokens: 100, logit_bias: { 1: -1000 } };
    const ended = [], all = [];
    for (const name of names) {
        for (let i = 0; i < 6; i++) {
            all.push(post(one, chatPath, long, bearer('secret-' + name)).then((r) => {
                assert.equal(r.status, 200, r.text);
                ended.push(name);
            }));
        }
        await eventually('they are here', async () => {
            const running = await metric(one, 'deepinfer:num_requests_running');
            const waiting = await metric(one, 'deepinfer:num_requests_waiting');
            return running + waiting + ended.length >= all.length;
        });
    }
    await Promise.all(all);
    // Two or three of the first client's are in the engine before there is another.
    const early = ended.slice(0, 10);
    for (const name of names) {
        assert.ok(early.filter((other) => other === name).length >= 2, String(ended));
    }
    await one.stop();
});

test('slow readers that hold too much together are given up, the greediest first', async () => {
    const one = await serve('--max-unsent', '30M', '--max-batch', '4');
    const prompt = { prompt: '<｜begin▁of▁sentence｜>'.repeat(3000), echo: true, max_tokens: 1 };
    const slow = await Promise.all([100, 128, 100, 100].map(async (n) => { // 9 and 11 MB, more than sockets take
        const c = raw(one);
        c.socket.pause();
        await c.send(request('POST', '/v1/completions', JSON.stringify({ ...prompt, n })));
        return c;
    }));
    await eventually('one is given up', () => one.log.includes('event=slow_readers'));
    const told = /event=slow_readers unsent=(\d+) given_up=req_\w+ bytes=(\d+)/.exec(one.log);
    assert.ok(Number(told[1]) > 30 << 20 && Number(told[2]) > 10e6, told[0]);
    assert.equal((await post(one, chatPath, story)).status, 200);
    assert.equal(one.log.match(/event=slow_readers/g).length, 1);
    slow.forEach((c) => c.socket.destroy());
    await one.stop();
});

test('keys are read again on SIGHUP; a broken file changes nothing', async () => {
    fs.writeFileSync(keys, 'secret-dave dave\nsecret-bob bob\nsecret-eve e"=\x07level=error\n');
    server.child.kill('SIGHUP');
    await eventually('dave may ask', async () =>
        (await post(server, chatPath, story, bearer('secret-dave'))).status === 200);
    assert.equal((await post(server, chatPath, story, bearer('secret-alice'))).status, 401);
    assert.equal((await post(server, chatPath, story, bearer('secret-eve'))).status, 200);
    await eventually('her name is a string', () => server.log.includes(' key="e\\"=\\u0007level=error"\n'));
    fs.writeFileSync(keys, 'x y\n');
    server.child.kill('SIGHUP');
    await eventually('it says so', () =>
        /event=keys_kept message="[^"\n]*line 1: a key of 8[^"\n]*"\n/.test(server.log));
    assert.equal((await post(server, chatPath, story, bearer('secret-dave'))).status, 200);
});

test('pages that are listed may ask', async () => {
    const ok = await post(server, chatPath, story,
        { ...bearer('secret-dave'), Origin: 'https://b.example' });
    assert.equal(ok.headers.get('access-control-allow-origin'), 'https://b.example');
    const asked = await fetch(server.base + chatPath, { method: 'OPTIONS', headers: {
        Origin: 'https://a.example', 'Access-Control-Request-Method': 'POST',
        'Access-Control-Request-Headers': 'authorization, content-type' } });
    assert.equal(asked.status, 200);
    assert.equal(asked.headers.get('access-control-allow-headers'), 'authorization, content-type');
    assert.equal((await post(server, chatPath, story, { Origin: 'https://c.example' })).status, 403);
});

test('metrics are well-formed and count', async () => {
    const text = await (await fetch(server.base + '/metrics')).text();
    const types = new Map(), seen = new Set();
    for (const line of text.trim().split('\n')) {
        const type = /^# TYPE (\S+) (\S+)$/.exec(line);
        if (type) types.set(type[1], type[2]);
        if (line.startsWith('#')) continue;
        const sample = /^([a-z0-9_:]+)(\{[^}]*\}|) (\S+)$/.exec(line);
        assert.ok(sample, line);
        const name = sample[1].replace(/_(bucket|sum|count)$/, '');
        assert.ok(types.has(sample[1]) || types.get(name) === 'histogram', line);
        assert.ok(!seen.has(sample[1] + sample[2]), 'twice: ' + line);
        seen.add(sample[1] + sample[2]);
        assert.ok(Number.isFinite(Number(sample[3])), line);
        if (name.startsWith('process_')) assert.equal(sample[2], '');
        else assert.ok(sample[2].includes('model_name="demo",engine="0"'));
    }
    for (const name of ['num_requests_running', 'num_requests_waiting', 'kv_cache_usage_perc',
        'prefix_cache_queries_total', 'prefix_cache_hits_total', 'prompt_tokens_total',
        'generation_tokens_total', 'num_preemptions_total', 'request_success_total',
        'spec_decode_num_drafts_total', 'spec_decode_num_draft_tokens_total',
        'spec_decode_num_accepted_tokens_total', 'time_to_first_token_seconds',
        'inter_token_latency_seconds', 'e2e_request_latency_seconds', 'request_queue_time_seconds',
        'request_prefill_time_seconds', 'request_decode_time_seconds',
        'request_inference_time_seconds', 'iteration_tokens_total']) {
        assert.ok(types.has('deepinfer:' + name), name);
    }
    const value = (name) => Number(text.split('\n').find((l) => l.startsWith('deepinfer:' + name + '{'))
        .split(' ').at(-1));
    assert.ok(value('generation_tokens_total') >= 5 * 8);
    assert.equal(value('time_to_first_token_seconds_count'), value('e2e_request_latency_seconds_count'));
    try {
        execFileSync('promtool', ['check', 'metrics'], { input: text });
    } catch (error) {
        if (error.code !== 'ENOENT') throw new Error(error.stdout + error.stderr);
    }
});

test('metrics of the process', async () => {
    const { pid } = server.child;
    const seconds = Date.now() / 1000, open = fs.readdirSync(`/proc/${pid}/fd`).length;
    const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
    const resident = 1024 * Number(/VmRSS:\s+(\d+) kB/.exec(status)[1]);
    const told = await metric(server, 'process_resident_memory_bytes');
    assert.ok(Math.abs(told - resident) < 0.2 * resident, `${told}, ${resident} by the system`);
    const begun = await metric(server, 'process_start_time_seconds');
    assert.ok(begun < seconds + 1 && begun > seconds - 600, `${begun} at ${seconds}`);
    assert.equal(await metric(server, 'process_start_time_seconds'), begun);
    const cpu = await metric(server, 'process_cpu_seconds_total');
    assert.ok(cpu > 0 && cpu < (seconds - begun + 1) * os.cpus().length, `${cpu}`);
    const crowd = Array.from({ length: 50 }, () => raw(server));
    await eventually('they are counted', async () =>
        await metric(server, 'process_open_fds') >= open + 45); // node may have closed some of its own
    assert.ok(await metric(server, 'process_max_fds') >= open + 50);
    crowd.forEach((c) => c.socket.destroy());
    await eventually('and no more', async () =>
        await metric(server, 'process_open_fds') <= open + 5);
});

test('one line a request', async () => {
    const r = await post(server, chatPath, story, bearer('secret-dave'));
    const id = 'id=' + r.headers.get('x-request-id') + ' ';
    await eventually('the line', () => server.log.includes(id));
    const lines = server.log.trim().split('\n').filter((l) => l.includes(id));
    assert.equal(lines.length, 1);
    const line = lines[0];
    for (const field of ['level=info', 'event=request', 'id=req_', 'route=/v1/chat/completions',
        'status=200', 'stream=0', 'prompt=', 'cached=', 'answer=5', 'finish=length', 'ttft_s=',
        'total_s=', 'client=127.0.0.1', 'key=dave']) {
        assert.ok(line.includes(field), `${field} in ${line}`);
    }
});

test('of a path that is none of ours the log has a beginning, escaped', async () => {
    const lines = () => server.log.split('\n').filter((l) => l.includes(' route=- path='));
    const ask = async (where) => {
        const n = lines().length, c = raw(server);
        await c.send(`GET ${where} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
        assert.match(await c.all(), /^HTTP\/1.1 404 /);
        await eventually('the line', () => lines().length === n + 1);
        return / path=(\S+) status=404 /.exec(lines().at(-1))[1];
    };
    assert.equal(await ask('/v2/chat?x=1'), '/v2/chat');
    assert.equal(await ask('/a"b=c\\'), '/a\\x22b\\x3dc\\x5c');
    const long = await ask('/' + 'y'.repeat(5000));
    assert.ok(long.length < 100 && long.endsWith('y...'), long);
    const c = raw(server); // a known path has none
    await c.send('GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    await c.all();
    await eventually('the line', () => server.log.includes('route=/version status=200'));
});

test('who does not read the log stops nobody, and hears of what he missed', async () => {
    const other = await serve();
    other.child.stderr.pause();
    for (let i = 0; i < 2000; i++) {
        const r = await fetch(other.base + '/health', { signal: AbortSignal.timeout(60000) });
        assert.equal((await r.json()).status, 'ok');
    }
    other.child.stderr.resume();
    await eventually('the log goes on', async () => {
        await fetch(other.base + '/health');
        return /level=warn event=log_lost lines=\d+\n/.test(other.log);
    });
    const told = other.log.split('\n').filter((l) => l.includes('route=/health')).length;
    const lost = Number(/event=log_lost lines=(\d+)/.exec(other.log)[1]);
    assert.ok(told + lost >= 2000, `${told} and ${lost}`);
    assert.ok(!/[^\n]time=2/.test(other.log), 'every line is whole');
    await other.stop();
});

test('what is logged of a request is its own, whatever the connection had before', async () => {
    const one = await serve('--read-timeout', '0.5');
    for (const used of [false, true]) {
        const late = raw(one), gone = raw(one);
        for (const c of used ? [late, gone] : []) {
            await c.send(request('GET', '/health'));
            await c.until('{"status":"ok"}');
        }
        await late.send('GET /hea');
        const [, id] = /HTTP\/1.1 408 [^]*\r\nX-Request-Id: (req_\w+)\r\n/.exec(await late.all());
        await eventually('the line', () => one.log.includes(`id=${id} `));
        const line = one.log.split('\n').find((l) => l.includes(`id=${id} `));
        assert.match(line, / route=- status=408 /);
        assert.ok(Number(/ total_s=(\S+)/.exec(line)[1]) < 60, line);
        await gone.send(request('POST', chatPath, JSON.stringify({ ...story, max_tokens: 3500,
            logit_bias: { 1: -1000 } })));
        await eventually('it runs', async () => await metric(one, 'deepinfer:num_requests_running') === 1);
        gone.socket.destroy();
        const left = () => one.log.split('\n').filter((l) => l.includes('finish=client_left'));
        await eventually('it left', () => left().length === (used ? 2 : 1));
        assert.match(left().at(-1), / status=0 /);
    }
    await one.stop();
});

test('who sends too much ahead is given up, and the log says so', async () => {
    const one = await serve(), c = raw(one);
    await c.send(request('POST', chatPath, JSON.stringify({ ...story, max_tokens: 3500,
        logit_bias: { 1: -1000 } })));
    await eventually('it runs', async () => await metric(one, 'deepinfer:num_requests_running') === 1);
    c.socket.write('x'.repeat(300000));
    await eventually('the line', () => / status=0 .* finish=sent_ahead /.test(one.log));
    await one.stop();
});

test('SIGTERM: answers end, nobody new comes', async () => {
    const c = raw(server);
    await c.send(request('POST', chatPath, JSON.stringify({ ...story, max_tokens: 300, stream: true,
        logit_bias: { 1: -1000 } }), 'Authorization: Bearer secret-dave\r\n'));
    await c.until('data: ');
    const idle = raw(server);
    await sleep(100);
    server.child.kill('SIGTERM');
    assert.ok((await c.all(30)).endsWith('data: [DONE]\n\n\r\n0\r\n\r\n'), c.got.slice(-200));
    assert.equal(await idle.all(), '');
    assert.deepEqual(await server.exited, { code: 0, signal: null });
});

test('the time for answers in progress is limited, and a second signal ends it', async () => {
    const long = { max_tokens: 3500, logit_bias: { 1: -1000 } };
    const input = 'Tell me a story about a fox.';
    // What tells nothing of its beginning is first: once another streams, it has been read.
    const bodies = [[chatPath, { ...story, ...long }, /^HTTP\/1\.1 503 [^]*\{"error":/],
        [chatPath, { ...story, ...long, n: 4, stream: true }, /data: \{"error":.*"server_error"/],
        ['/v1/completions', { prompt: input, ...long, stream: true }, /data: \{"error":.*"server_error"/],
        ['/v1/responses', { input, max_output_tokens: 3500, logit_bias: { 1: -1000 }, stream: true },
            /event: response\.failed/],
        ['/v1/messages', { messages: story.messages, ...long, stream: true }, /event: error\n.*"type":"api_error"/]];
    for (const signals of [1, 2]) {
        const other = await serve('--drain-timeout', signals === 1 ? '0.5' : '3600', '--context', '4096');
        const all = [];
        for (const [path, body] of bodies) {
            const c = raw(other);
            await c.send(request('POST', path, JSON.stringify(body)));
            if (body.stream) await c.until('data: {');
            all.push(c);
        }
        other.child.kill('SIGINT');
        if (signals === 2) {
            await eventually('the first is taken', () => other.log.includes('event=drain '));
            other.child.kill('SIGINT');
        }
        for (const [i, c] of all.entries()) {
            const got = await c.all();
            assert.match(got, bodies[i][2], got.slice(-400));
            assert.match(got, /the server is stopping/);
            if (bodies[i][1].stream) assert.ok(got.endsWith('\r\n0\r\n\r\n'), got.slice(-100));
        }
        assert.deepEqual(await other.exited, { code: 0, signal: null });
        assert.equal(other.log.match(/finish=server_stopped/g)?.length, bodies.length, other.log);
        assert.ok(!other.log.includes('client_left'));
    }
});

test('a file of settings: every option, the command line over it', async () => {
    const file = path.join(folder, 'settings.json');
    fs.writeFileSync(file, JSON.stringify({ name: ['first', 'second'], 'keep-alive': 0.2,
        quiet: true, 'metrics': 'vllm', context: 256, 'any-name': false, 'max-body': '64K' }));
    const other = await serve('--settings', file, '--context', '512');
    const models = await (await fetch(other.base + '/v1/models')).json();
    assert.deepEqual(models.data.map((m) => [m.id, m.max_model_len]), [['first', 512], ['second', 512]]);
    assert.match(await (await fetch(other.base + '/metrics')).text(), /^vllm:num_requests_running/m);
    assert.ok(!other.log.includes('event=request'));
    assert.equal((await post(other, chatPath, ' '.repeat(70000))).status, 413);
    await other.stop();
    for (const [text, why] of [['{"port": 0,\n\n "prot": 1}', /settings\.json:3: 'prot' is no option of serve/],
        ['{"port": [1]}', /settings\.json:1: port: one value is needed/],
        ['{\n"quiet":\n"yes"}', /json:3: quiet: true or false/],
        ['{"any-name": true,\n "port": "x"}', /settings\.json:2: --port: 'x' is not a whole number/],
        ['{\n\n"max-body": -1}', /settings\.json:3: --max-body: '-1' is not/],
        ['{\n"host": "nowhere"}', /settings\.json:2: --host: 'nowhere' is no address/], ['{', /line 1/], ['[]', /no JSON object/],
        ['{"settings": "x"}', /'settings' is no option/], ['{"host": null, "port": true}', /json:1: port: a text/]]) {
        fs.writeFileSync(file, text);
        try {
            execFileSync(process.env.PROGRAM, ['serve', model, '--settings', file],
                { stdio: ['ignore', 'ignore', 'pipe'], timeout: 30000 });
            assert.fail('it started');
        } catch (error) {
            assert.match(String(error.stderr), why);
        }
    }
});

test('what cannot start says why, before the model is opened', async () => {
    const run = (...args) => {
        try {
            execFileSync(process.env.PROGRAM, ['serve', model, ...args],
                { stdio: ['ignore', 'ignore', 'pipe'], timeout: 30000 });
        } catch (error) {
            return `${error.status}: ${error.stderr}`;
        }
        return '';
    };
    const other = await serve();
    assert.match(run('--port', String(other.port)),
        /^1: deepinfer serve: cannot listen on 127.0.0.1 port \d+: address already in use$/m);
    await other.stop();
    assert.match(run('--host', 'nowhere'), /^2: deepinfer serve: .*no address such as/);
    assert.match(run('--api-keys', path.join(folder, 'nothing')), /^1: deepinfer serve: .*nothing/);
    fs.rmSync(folder, { recursive: true });
});

await runTests();
