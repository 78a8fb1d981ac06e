// What deploy/ says is true of the program: its metrics exist, its options are those of serve.
import fs from 'node:fs';
import path from 'node:path';
import { execFileSync } from 'node:child_process';
import { assert, test, runTests, serve } from './harness.mjs';

const deploy = path.join(process.env.SOURCE, 'deploy');
const read = (name) => fs.readFileSync(path.join(deploy, name), 'utf8');

test('every metric of the dashboard is one of the server', async () => {
    const server = await serve('-q');
    const page = await (await fetch(server.base + '/metrics')).text();
    await server.stop();
    const samples = new Set([...page.matchAll(/^((?:deepinfer:|process_)\w+)[{ ]/gm)].map((m) => m[1]));
    const { panels } = JSON.parse(read('grafana/deepinfer.json'));
    assert.ok(panels.length >= 10);
    for (const { title, targets } of panels) {
        const named = targets.flatMap(({ expr }) => expr.match(/deepinfer:\w+/g) ?? []);
        assert.ok(named.length >= targets.length, title);
        const process = targets.flatMap(({ expr }) => expr.match(/\bprocess_\w+/g) ?? []);
        for (const name of [...named, ...process]) assert.ok(samples.has(name), `${title}: no ${name}`);
    }
});

test('every option is one of serve', () => {
    const help = execFileSync(process.env.PROGRAM, ['help', 'serve'], { encoding: 'utf8' });
    const options = new Set(help.match(/--[a-z][a-z-]*/g));
    for (const name of ['deepinfer.service', 'kubernetes/deepinfer.yaml', 'nginx.conf']) {
        const used = read(name).match(/--[a-z][a-z-]*/g) ?? [];
        assert.ok(used.length > 0, name);
        for (const option of used) assert.ok(options.has(option), `${name}: no ${option}`);
    }
});

test('the grace of those who stop it is longer than the drain', () => {
    const help = execFileSync(process.env.PROGRAM, ['help', 'serve'], { encoding: 'utf8' });
    const drain = Number(/--drain-timeout X[^]*?Default:\s+(\d+)/.exec(help)?.[1]);
    assert.ok(drain > 0, help);
    assert.ok(Number(/^TimeoutStopSec=(\d+)$/m.exec(read('deepinfer.service'))[1]) > drain);
    const pod = read('kubernetes/deepinfer.yaml');
    assert.match(pod, new RegExp(`"--drain-timeout", "${drain}"`));
    assert.ok(Number(/terminationGracePeriodSeconds: (\d+)/.exec(pod)[1]) > drain);
});

await runTests();
