// The commands of README.md and docs/serving.md that ask a server, as they stand there: each is run
// against one, and its answer is looked at.
// ctest: slow
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { assert, test, runTests, serve, parseEvents } from './harness.mjs';

const files = ['README.md', 'docs/serving.md'];

// Commands in code, with the lines that go on from them.
function commandsOf(file) {
    const commands = [];
    let command = null;
    for (const line of fs.readFileSync(path.join(process.env.SOURCE, file), 'utf8').split('\n')) {
        if (command === null && /^ *curl .*http:\/\/127\.0\.0\.1:\d+/.test(line)) command = '';
        if (command === null) continue;
        command += line + '\n';
        if (line.endsWith('\\') || command.split("'").length % 2 === 0) continue;
        commands.push(command.trim());
        command = null;
    }
    assert.equal(command, null, `${file}: a command without an end`);
    return commands;
}

const run = (command) => new Promise((resolve) => execFile('bash', ['-euo', 'pipefail', '-c', command],
    { timeout: 60000 }, (error, stdout, stderr) => resolve({ code: error ? error.code : 0, stdout, stderr })));

// What an answer must be, by its path.
const says = (text) => assert.ok(text.length > 0, 'it says something');
const chat = (a) => says(a.choices[0].message.content ?? a.choices[0].message.tool_calls[0].id);
const checks = {
    '/ready': (a) => assert.equal(a.status, 'ready'),
    '/health': (a) => assert.equal(a.status, 'ok'),
    '/version': (a) => says(a.version),
    '/v1/models': (a) => says(a.data[0].id),
    '/metrics': (a) => assert.match(a, /^# HELP deepinfer:/),
    '/v1/chat/completions': chat,
    '/v1/completions': (a) => says(a.choices[0].text),
    '/v1/responses': (a) => says(a.output.find((o) => o.type === 'message').content[0].text),
    '/v1/messages': (a) => says(a.content.map((b) => b.text ?? b.thinking).join('')),
    '/v1/messages/count_tokens': (a) => assert.ok(a.input_tokens > 0),
    '/tokenize': (a) => assert.ok(a.count > 0),
    '/detokenize': (a) => says(a.prompt),
};
const streams = {
    '/v1/chat/completions': (events) => {
        assert.equal(events.pop().data, '[DONE]');
        says(events.map((e) => e.data.choices[0]?.delta)
            .map((d) => (d?.reasoning_content ?? '') + (d?.content ?? '')).join(''));
    },
    '/v1/messages': (events) => {
        assert.equal(events.at(-1).event, 'message_stop');
        says(events.map((e) => e.data.delta)
            .map((d) => d?.thinking ?? d?.text ?? '').join(''));
    },
};

const server = await serve();
for (const file of files) {
    test(`${file}: its commands`, async () => {
        const commands = commandsOf(file);
        assert.ok(commands.length > 2, `${commands.length} commands`);
        for (const command of commands) {
            const where = /http:\/\/127\.0\.0\.1:\d+(\/[^\s'"?]*)/.exec(command)[1];
            const { code, stdout, stderr } = await run(command
                .replace(/http:\/\/127\.0\.0\.1:\d+/g, server.base)
                .replace(/^curl /, "curl -sS -w '\\n%{http_code}' "));
            const [, body, status] = /^(.*)\n(\d+)$/s.exec(stdout) ?? assert.fail(command + stderr);
            assert.equal(`${code} ${status}`, '0 200', `${command}\n${stdout}${stderr}`);
            try {
                if (/"stream": true/.test(command)) streams[where](parseEvents(body).events);
                else checks[where](where === '/metrics' ? body : JSON.parse(body));
            } catch (error) {
                assert.fail(`${command}\n${body.slice(0, 3000)}\n${error.stack}`);
            }
        }
    });
}

test('all of it in the end', () => server.stop());
await runTests();
