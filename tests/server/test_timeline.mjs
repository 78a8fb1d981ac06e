// The timeline: it parses, its times are possible, and what took long is told in the log.
import fs from 'node:fs';
import path from 'node:path';
import { assert, test, runTests, serve, post, eventually, scratch } from './harness.mjs';

const folder = scratch(), keys = path.join(folder, 'keys');
fs.writeFileSync(keys, 'secret-alice alice\n');
const story = (n) => ({ messages: [{ role: 'user', content: 'Tell me a story about a fox.' }],
    thinking: false, temperature: 0, max_tokens: n, logit_bias: { 1: -1000 } });
const auth = { Authorization: 'Bearer secret-alice' };
const [HOST, DEVICE] = [1, 2];
const NS = 0.0021; // two times, rounded to nanoseconds each, in microseconds
const server = await serve('--debug', '--slow-step-ms', '0.001', '--api-keys', keys);
let trace = null;

async function timeline() {
    const r = await fetch(server.base + '/debug/timeline', { headers: auth });
    assert.equal(r.status, 200);
    assert.match(r.headers.get('content-type'), /^application\/json/);
    return (await r.json()).traceEvents;
}

const spans = (track) => trace.filter((e) => e.ph === 'X' && e.tid === track)
    .sort((a, b) => a.ts - b.ts || b.dur - a.dur);

test('only who has a key sees it, and only with --debug', async () => {
    assert.equal((await fetch(server.base + '/debug/timeline')).status, 401);
    assert.deepEqual((await timeline()).filter((e) => e.ph !== 'M'), []); // nothing was done yet
    const other = await serve();
    assert.equal((await fetch(other.base + '/debug/timeline')).status, 404);
    assert.equal((await post(other, '/v1/chat/completions', story(3))).status, 200);
    await other.stop();
    assert.ok(!other.log.includes('event=slow_step'));
});

test('every step has its parts in order, on the host and on the device', async () => {
    const answers = await Promise.all([40, 60, 5].map((n) =>
        post(server, '/v1/chat/completions', story(n), auth)));
    assert.ok(answers.every((r) => r.status === 200));
    trace = await timeline();
    const steps = new Map();
    for (const e of trace.filter((one) => one.ph === 'X')) {
        assert.ok(e.ts >= 0 && e.dur > 0 && Number.isInteger(e.args.step), JSON.stringify(e));
        const parts = steps.get(e.args.step) ?? steps.set(e.args.step, {}).get(e.args.step);
        assert.ok(!(e.name in parts), `${e.name} twice`);
        parts[e.name] = e;
    }
    assert.ok(steps.size >= 8, `${steps.size} steps`);
    for (const p of steps.values()) {
        const order = ['schedule', 'build', 'enqueue', 'wait', 'deliver'].map((n) => p[n]).filter(Boolean);
        for (let i = 1; i < order.length; i++) {
            assert.ok(order[i].ts + NS >= order[i - 1].ts + order[i - 1].dur, 'parts do not overlap');
        }
        assert.ok(p.enqueue && p.step && p.forward && p.deliver);
        // The device cannot begin before it was asked, nor be read before it ended.
        assert.ok(p.step.ts + NS >= p.enqueue.ts, 'begins when it is enqueued');
        assert.ok(p.step.ts + p.step.dur <= p.deliver.ts + NS, 'is read when it has ended');
        assert.ok(p.forward.ts + NS >= p.step.ts &&
            Math.abs(p.forward.ts + p.forward.dur - p.step.ts - p.step.dur) < NS);
        assert.ok(p.step.args.rows >= 1 && p.step.args.rows >= p.step.args.blocks);
        if (p.idle) {
            assert.ok(Math.abs(p.idle.ts + p.idle.dur - p.step.ts) < NS, 'idle until the step');
            const parts = ['caller', 'schedule', 'build', 'enqueue', 'wake', 'deliver', 'stream']
                .reduce((sum, n) => sum + p.idle.args[n + '_us'], 0);
            assert.ok(Math.abs(parts - p.idle.dur) < 0.01, `${parts} of ${p.idle.dur}`);
        }
    }
    assert.ok([...steps.values()].some((p) => p.step.args.prompt_rows > 0));
    assert.ok([...steps.values()].some((p) => p.idle), 'some step was waited for');
});

test('what is on one track nests', async () => {
    for (const track of [HOST, DEVICE]) {
        const open = [];
        for (const e of spans(track)) {
            while (open.length && open.at(-1) <= e.ts + NS) open.pop();
            if (open.length) assert.ok(e.ts + e.dur <= open.at(-1) + NS, JSON.stringify(e));
            open.push(e.ts + e.dur);
        }
    }
});

test('requests: queued, prefill, decode, finished', async () => {
    const ids = new Map();
    for (const e of trace.filter((one) => one.cat === 'request')) {
        const all = ids.get(e.id) ?? ids.set(e.id, []).get(e.id);
        all.push(e);
    }
    assert.equal(ids.size, 3);
    for (const events of ids.values()) {
        assert.deepEqual(events.map((e) => e.ph + ' ' + e.name), ['b request', 'b queued', 'e queued',
            'b prefill', 'e prefill', 'b decode', 'e decode', 'n finished', 'e request']);
        for (let i = 1; i < events.length; i++) assert.ok(events[i].ts >= events[i - 1].ts);
    }
});

test('the ring is bounded: the oldest steps go', async () => {
    await post(server, '/v1/chat/completions', story(1500), auth);
    trace = await timeline();
    const steps = [...new Set(spans(DEVICE).map((e) => e.args.step))].sort((a, b) => a - b);
    assert.equal(steps.length, 1024);
    assert.ok(steps[0] > 0 && steps.at(-1) - steps[0] === 1023, 'the last ones, each of them');
});

test('a slow step is logged with its parts', async () => {
    await eventually('a line', async () => server.log.includes('event=slow_step'));
    const line = /event=slow_step .*/.exec(server.log)[0];
    const field = (name) => {
        const found = new RegExp(` ${name}=([\\d.]+)`).exec(line);
        assert.ok(found, `${name} in ${line}`);
        return Number(found[1]);
    };
    assert.ok(field('rows') > 0 && field('prompt_rows') > 0);
    const parts = ['schedule_s', 'build_s', 'enqueue_s', 'wait_s', 'deliver_s'].map(field);
    assert.ok(parts.reduce((a, b) => a + b) <= field('step_s') + 3e-4, line);
    assert.ok(field('device_s') > 0 && field('device_s') <= field('step_s') + 1e-4, line);
    await server.stop();
    fs.rmSync(folder, { recursive: true });
});

await runTests();
