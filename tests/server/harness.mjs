// What the tests of the server share: a server of the built program on a free port, requests with and
// without a library, and a list of cases. PROGRAM and SOURCE come from run_node.sh.
import { spawn } from 'node:child_process';
import net from 'node:net';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import assert from 'node:assert/strict';

export { assert };
export const model = path.join(process.env.SOURCE, 'models/demo');
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const cases = [];
export const test = (name, run) => cases.push({ name, run });

export async function runTests() {
    let failed = 0;
    for (const { name, run } of cases) {
        const begun = Date.now();
        console.log(`[ RUN      ] ${name}`);
        try {
            await run();
            console.log(`[       OK ] ${name} (${Date.now() - begun} ms)`);
        } catch (error) {
            failed++;
            console.log(`[  FAILED  ] ${name}\n${error.stack}`);
        }
    }
    console.log(`${cases.length - failed} passed, ${failed} failed`);
    process.exit(failed ? 1 : 0);
}

// A server; `log` grows as it speaks. stop() ends it by SIGTERM and says how it ended.
export async function serve(...options) {
    const slow = Number(process.env.DI_SLOW || 1); // sanitizers
    const child = spawn(process.env.PROGRAM,
        ['serve', model, '--port', '0', '--threads', '1', '--context', '4096', ...options],
        { stdio: ['ignore', 'ignore', 'pipe'] });
    const server = { child, log: '', port: 0, base: '' };
    const exited = new Promise((resolve) =>
        child.on('exit', (code, signal) => resolve({ code, signal })));
    child.stderr.on('data', (data) => (server.log += data));
    for (let i = 0; i < 300 * slow && !server.port; i++) {
        const found = /event=listening address=http:\/\/\S+:(\d+)/.exec(server.log);
        if (found) server.port = Number(found[1]);
        else await sleep(100);
        if (child.exitCode !== null) break;
    }
    if (!server.port) throw new Error('no server: ' + server.log);
    server.base = `http://127.0.0.1:${server.port}`;
    server.exited = exited;
    server.stop = async () => {
        child.kill('SIGTERM');
        const timer = setTimeout(() => child.kill('SIGKILL'), 60000 * slow);
        const how = await exited;
        clearTimeout(timer);
        assert.deepEqual(how, { code: 0, signal: null }, server.log);
    };
    return server;
}

export async function post(server, where, body, headers = {}) {
    const response = await fetch(server.base + where, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', ...headers },
        body: typeof body === 'string' ? body : JSON.stringify(body),
    });
    const text = await response.text();
    let json = null;
    try { json = JSON.parse(text); } catch { /* the test looks at it */ }
    return { status: response.status, headers: response.headers, text, json };
}

// The events of a stream: [{event, data}], data parsed where it is JSON; comments apart.
export function parseEvents(text) {
    const events = [], comments = [];
    assert.ok(text === '' || text.endsWith('\n\n'), 'a stream ends in a blank line');
    for (const block of text.split('\n\n')) {
        if (!block) continue;
        const one = { event: null, data: null };
        for (const line of block.split('\n')) {
            if (line.startsWith(':')) comments.push(line);
            else if (line.startsWith('event: ')) one.event = line.slice(7);
            else if (line.startsWith('data: ')) one.data = line.slice(6);
            else assert.fail('a line of a stream: ' + line);
        }
        if (one.data === null) continue;
        if (one.data !== '[DONE]') one.data = JSON.parse(one.data);
        events.push(one);
    }
    return { events, comments };
}

export async function stream(server, where, body, headers = {}) {
    const r = await post(server, where, { ...body, stream: true }, headers);
    assert.equal(r.status, 200, r.text);
    assert.match(r.headers.get('content-type'), /^text\/event-stream/);
    return parseEvents(r.text);
}

// What the chunks of a chat stream add up to, by choice.
export function joinChat(events) {
    const choices = [];
    let usage = null;
    assert.equal(events.at(-1).data, '[DONE]');
    for (const { data } of events.slice(0, -1)) {
        if (data.error) throw new Error(JSON.stringify(data.error));
        assert.equal(data.object, 'chat.completion.chunk');
        if (data.usage) usage = data.usage;
        for (const c of data.choices) {
            const to = (choices[c.index] ??= { text: '', thought: '', calls: [], tokens: [],
                                               finish: null, roles: 0 });
            assert.equal(to.finish, null, 'nothing comes behind the end');
            if (c.delta.role) to.roles++;
            to.text += c.delta.content ?? '';
            to.thought += c.delta.reasoning_content ?? '';
            for (const call of c.delta.tool_calls ?? []) {
                const one = (to.calls[call.index] ??= { id: call.id, name: call.function.name,
                                                        arguments: '' });
                one.arguments += call.function.arguments ?? '';
            }
            to.tokens.push(...(c.logprobs?.content ?? []));
            to.finish = c.finish_reason;
        }
    }
    return { choices, usage };
}

// The server behind a link over which answers come a few bytes at a time: whoever is slow to look still sees
// one that is not over.
export async function slowLink(server, bytes = 128, milliseconds = 20) {
    const link = net.createServer((client) => {
        const inner = net.connect({ port: server.port, host: '127.0.0.1' });
        client.on('error', () => { }).on('close', () => inner.destroy());
        inner.on('error', () => { }).on('end', () => client.end()).on('close', () => client.destroy());
        client.pipe(inner);
        (async () => {
            let answers = false; // what comes is an event stream
            for await (const data of inner) {
                answers ||= data.includes('text/event-stream');
                for (let i = 0; i < data.length && !client.destroyed; i += answers ? bytes : data.length) {
                    client.write(answers ? data.subarray(i, i + bytes) : data);
                    if (answers) await sleep(milliseconds);
                }
            }
        })().catch(() => { }); // either side left
    });
    await new Promise((resolve) => link.listen(0, '127.0.0.1', resolve));
    const { port } = link.address();
    return { port, base: `http://127.0.0.1:${port}`, close: () => link.close() };
}

// Bytes on a socket. send() and all() or until(text), which wait long: the machine may be busy.
export function raw(server, options = {}) {
    const socket = net.connect({ port: server.port, host: '127.0.0.1', ...options });
    const c = { socket, got: '', closed: false };
    const done = new Promise((resolve) => socket.on('close', () => {
        c.closed = true;
        resolve();
    }));
    socket.on('error', () => { });
    socket.on('data', (data) => (c.got += data.toString('latin1')));
    c.send = (bytes) => new Promise((resolve) => socket.write(bytes, () => resolve()));
    c.until = async (text, seconds = 60) => {
        for (let i = 0; i < seconds * 50; i++) {
            if (c.got.includes(text)) return;
            if (c.closed) break;
            await sleep(20);
        }
        assert.fail(`'${text}' did not come, but: ${c.got.slice(0, 2000)}`);
    };
    c.all = async (seconds = 60) => {
        await Promise.race([done, sleep(seconds * 1000)]);
        assert.ok(c.closed, 'the connection stays open: ' + c.got.slice(0, 500));
        return c.got;
    };
    return c;
}

export const request = (method, where, body = '', headers = '') =>
    `${method} ${where} HTTP/1.1\r\nHost: localhost\r\n` +
    (body ? `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n` : '') +
    `${headers}\r\n${body}`;

export async function metric(server, name) {
    const text = await (await fetch(server.base + '/metrics')).text();
    const line = text.split('\n').find((l) => l.startsWith(name + '{') || l.startsWith(name + ' '));
    assert.ok(line, `no ${name} in ${text}`);
    return Number(line.split(' ').at(-1));
}

// Waits until what `look` gives is true.
export async function eventually(what, look, seconds = 30) {
    const slow = Number(process.env.DI_SLOW || 1);
    for (let i = 0; i < seconds * 20 * slow; i++) {
        if (await look()) return;
        await sleep(50);
    }
    assert.fail(`not in ${seconds} s: ${what}`);
}

export function scratch() {
    return fs.mkdtempSync(path.join(os.tmpdir(), 'di-serve-'));
}
