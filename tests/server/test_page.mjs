// The page, in a browser: what a person does with it, and what he sees.
// npm: playwright-core@1.65.1
// ctest: slow
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { assert, test, runTests, serve, raw, request, scratch, slowLink, eventually } from './harness.mjs';

const browserPath = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
    .find((file) => fs.existsSync(file));
if (!browserPath) {
    console.log('[  SKIPPED ] test_page: chromium is not installed');
    process.exit(77);
}
const { chromium } = createRequire(path.join(process.env.NODE_FOLDER, 'x.js'))('playwright-core');

const slow = Number(process.env.DI_SLOW || 1);
const keys = path.join(scratch(), 'keys');
fs.writeFileSync(keys, 'secret-alice alice\n');
const server = await serve('--spec', 'fixed', '-q');
const browser = await chromium.launch({ executablePath: browserPath,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const shots = process.env.DI_SHOTS; // a folder for pictures, to look at

const tools = JSON.stringify([{ name: 'find_item', description: 'Find out where an item is.',
    parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] } }]);

// A page in a browser of its own. Whatever it complains of fails the test that looks at `complaints`.
async function open(options = {}, base = server.base) {
    const context = await browser.newContext({ viewport: { width: 1100, height: 760 }, ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(60000 * slow); // long only where the machine is busy
    const complaints = [];
    page.on('console', (message) => {
        if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
    });
    page.on('pageerror', (error) => complaints.push(String(error)));
    page.on('request', (asked) => {
        if (!asked.url().startsWith(base + '/')) complaints.push('asks elsewhere: ' + asked.url());
    });
    await page.goto(base + '/');
    return { page, context, complaints };
}

async function set(page, values) {
    await page.getByRole('button', { name: 'Settings' }).click();
    for (const [label, value] of Object.entries(values)) {
        const field = page.getByLabel(label, { exact: true });
        if (await field.evaluate((e) => e.tagName === 'SELECT')) await field.selectOption(value);
        else await field.fill(value);
    }
    await page.getByRole('button', { name: 'Close' }).click();
}

async function ask(page, text) {
    await page.getByLabel('Your message', { exact: true }).fill(text);
    await page.keyboard.press('Enter');
}

// The text of the last answer, once it is there.
async function answer(page) {
    const last = page.locator('.assistant').last();
    await last.and(page.locator('[aria-busy="false"]')).waitFor();
    return last;
}

const shot = async (page, name) => {
    if (shots) await page.screenshot({ path: path.join(shots, name + '.png') });
};

test('its files: types, policy, a second look costs nothing', async () => {
    const get = (where, more) => fetch(server.base + where, more);
    const page = await get('/');
    const html = await page.text();
    assert.match(page.headers.get('content-type'), /^text\/html/);
    assert.match(page.headers.get('content-security-policy'), /^default-src 'none'; script-src 'self';/);
    assert.equal(page.headers.get('x-content-type-options'), 'nosniff');
    assert.equal(page.headers.get('cache-control'), 'no-cache');
    assert.ok(!/https?:\/\//.test(html), 'nothing from elsewhere');
    for (const [, file, kind] of html.matchAll(/(page\/\w+\.(\w+))/g)) {
        const one = await get('/' + file);
        assert.equal(one.status, 200, file);
        assert.match(one.headers.get('content-type'),
            { css: /^text\/css/, js: /^text\/javascript/, svg: /^image\/svg/ }[kind]);
        const again = await get('/' + file, { headers: { 'If-None-Match': one.headers.get('etag') } });
        assert.equal(again.status, 304);
        assert.equal(await again.text(), '');
    }
    assert.equal((await get('/', { headers: { 'If-None-Match': '"other"' } })).status, 200);
    const head = raw(server);
    await head.send(request('HEAD', '/', '', 'Connection: close\r\n'));
    assert.match(await head.all(), new RegExp(`Content-Length: ${Buffer.byteLength(html)}\r\n\r\n$`));
    assert.equal((await get('/', { method: 'POST' })).status, 405);
    for (const where of ['/page/', '/page/index', '/page/../server.c', '/page/page.js/', '/other']) {
        assert.equal((await get(where)).status, 404, where);
    }
});

test('a conversation: it thinks, answers, is edited, asked again, kept over a reload', async () => {
    const { page, context, complaints } = await open();
    await eventually('its model is named', async () => (await page.locator('#model').textContent()) === 'demo');
    await shot(page, 'hello');
    await set(page, { Temperature: '0', Thinking: 'high' });
    await ask(page, 'What is 12 + 13?');
    let last = await answer(page);
    assert.match(await last.locator('.prose').textContent(), /12 \+ 13 = 25/);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'question');
    const thought = last.locator('details');
    assert.match(await thought.locator('summary').textContent(), /^Thought for \d+ tokens$/);
    assert.ok(!await thought.locator('.text').isVisible(), 'a thought is folded');
    await thought.locator('summary').press('Enter');
    assert.match(await thought.locator('.text').innerText(), /So 12 \+ 13 = 25/);
    const figures = await last.locator('.figures').textContent();
    assert.match(figures,
        /\d+ tokens, [\d.,]+ tokens\/sfirst after [\d.]+ m?s0 of \d+ prompt tokens cached\d+ drafts? accepted$/);
    const [tokens, drafts] = [/^\d+/, /(?<=cached)\d+/].map((form) => Number(form.exec(figures)[0]));
    assert.ok(drafts > 5 && drafts <= tokens, `${drafts} of ${tokens}`);
    assert.match(await page.locator('#said').textContent(), /^Answer: .*25/);
    await shot(page, 'thought');

    await ask(page, 'What is 20 + 13?');
    assert.match(await (await answer(page)).locator('.prose').textContent(), /33/);
    assert.ok(await page.locator('.assistant details .text').first().isVisible(), 'what is open stays');
    await page.reload();
    assert.deepEqual(await page.locator('.user .text').allTextContents(),
        ['What is 12 + 13?', 'What is 20 + 13?']);
    assert.match(await (await answer(page)).locator('.prose').textContent(), /33/);
    assert.equal(await page.getByLabel('Thinking').inputValue(), 'high');

    await page.getByRole('button', { name: 'Regenerate' }).click();
    last = await answer(page);
    assert.match(await last.locator('.prose').textContent(), /33/);
    await eventually('asked again, all whole pages of the prompt are found', async () =>
        /[1-9]\d* of \d+ prompt tokens cached/.test(await last.locator('.figures').textContent()));
    assert.equal(await page.locator('.message').count(), 4);

    await page.getByRole('button', { name: 'Edit' }).first().click();
    await page.getByLabel('Your message, edited').press('Escape');
    assert.equal(await page.locator('.message').count(), 4);
    await page.getByRole('button', { name: 'Edit' }).first().click();
    await page.getByLabel('Your message, edited').fill('What is 30 + 11?');
    await page.getByRole('button', { name: 'Ask again' }).click();
    assert.match(await (await answer(page)).locator('.prose').textContent(), /41/);
    assert.equal(await page.locator('.message').count(), 2);

    await page.getByRole('button', { name: 'New conversation' }).click();
    assert.equal(await page.locator('.message').count(), 0);
    await page.reload();
    assert.equal(await page.locator('.message').count(), 0);
    assert.deepEqual(complaints, []);
    await context.close();
});

test('stop: by its button and by Esc; what came stays', async () => {
    const link = await slowLink(server);
    const { page, context, complaints } = await open({}, link.base);
    await set(page, { Thinking: 'none', 'Form of the answer': 'regex', 'Regular expression': '(ab){1500}' });
    for (const way of ['button', 'key']) {
        await ask(page, 'Write.');
        const last = page.locator('.assistant').last();
        await last.locator('.prose', { hasText: 'abab' }).waitFor();
        assert.equal(await page.getByRole('button', { name: /Edit|Regenerate/ }).count(), 0);
        await eventually('the speed is shown while it comes', async () =>
            /tokens\/s/.test(await page.locator('#speed').textContent()));
        if (way === 'button') await page.getByRole('button', { name: 'Stop' }).click();
        else await page.keyboard.press('Escape');
        await answer(page);
        assert.match(await last.locator('.figures').textContent(), /stopped/);
        const text = await last.locator('.prose').textContent();
        assert.ok(text.length > 3 && text.length < 3000, `${text.length} letters`);
        assert.equal(await page.locator('#said').textContent(), 'Stopped.');
    }
    assert.ok(await page.getByRole('button', { name: 'Send' }).isVisible());
    assert.deepEqual(complaints, []);
    await context.close();
    link.close();
});

test('a tool: its call is shown, its result typed in, the answer follows', async () => {
    const { page, context, complaints } = await open();
    await set(page, { Temperature: '0', Thinking: 'none', 'Tools, as JSON': tools,
        'System prompt': 'You are a helpful assistant.' });
    await ask(page, 'Where is the mirror?');
    await answer(page);
    const call = page.getByRole('region', { name: 'Call of find_item' });
    assert.match(await call.locator('pre').textContent(), /^\{\n {2}"item": "mirror"\n\}$/);
    const field = page.getByLabel('What find_item gives');
    await eventually('it has the focus', () => field.evaluate((e) => e === document.activeElement));
    await shot(page, 'call');
    await field.fill('{"place": "meadow"}');
    await page.getByRole('button', { name: 'Give the result' }).click();
    await page.locator('.assistant').nth(1).waitFor();
    assert.match(await (await answer(page)).locator('.prose').textContent(), /meadow/);
    await shot(page, 'result');
    await page.reload();
    assert.match(await call.locator('.result').textContent(), /meadow/);
    assert.deepEqual(complaints, []);
    await context.close();
});

test('JSON: an answer by a schema; mistakes are told where they are', async () => {
    const { page, context, complaints } = await open();
    const schema = { type: 'object', properties: { sum: { type: 'integer' } }, required: ['sum'] };
    await set(page, { Thinking: 'none', 'Form of the answer': 'json_schema', Schema: JSON.stringify(schema) });
    await ask(page, 'What is 12 + 13?');
    const text = await (await answer(page)).locator('.prose pre.json').textContent();
    assert.deepEqual(Object.keys(JSON.parse(text)), ['sum']);
    await set(page, { Schema: '{"type": ' });
    assert.match(await page.locator('#schema-note').textContent(), /^This is not JSON: /);
    await ask(page, 'And now?');
    assert.match(await page.getByRole('alert').textContent(), /Schema: /);
    await eventually('the field has the focus', () =>
        page.getByLabel('Schema', { exact: true }).evaluate((e) => e === document.activeElement));
    await shot(page, 'settings');
    await page.keyboard.press('Escape');
    assert.ok(!await page.locator('#settings').isVisible());
    // What only the server can know is told in its words.
    await set(page, { Schema: '{"type": "array", "contains": {"const": 1}}' });
    complaints.length = 0;
    await page.getByRole('button', { name: 'Regenerate' }).click();
    await page.getByRole('alert').filter({ hasText: 'contains' }).waitFor();
    assert.ok(complaints.every((c) => /status of 400/.test(c)), complaints.join());
    await context.close();
});

test('what a model writes is text, whatever it looks like', async () => {
    const { page, context, complaints } = await open();
    const shown = await page.evaluate(async () => {
        const { markdown } = await import(new URL('page/markdown.js', location.href));
        const html = (text) => {
            const node = document.createElement('div');
            node.append(...markdown(text));
            return node.innerHTML;
        };
        const deep = '**'.repeat(3000) + 'a' + '**'.repeat(3000), many = '`a` '.repeat(20000);
        return { bad: html('<img src=x onerror=alert(1)> [a](javascript:alert(1)) `<script>`'),
            form: html('# Head\n\none **two `three`** *four*, 2 * 3 * 4, snake_case\nfive'),
            list: html('- a\n  - b\n- c\n\n3. d\n4. e'),
            table: html('| a | b |\n| --- | --: |\n| `x\\|y` | <b> |\n| 2 |\nafter'), not: html('a | b\nc | d'),
            quote: html('> one\n> - two\n\n---\nthree'), quotes: html('>'.repeat(3000) + ' a').length,
            code: html('```c\nif (a < b) **no**;\n```\nafter'), open: html('```\nnot closed'),
            sizes: [html(deep).length, html(many).length] };
    });
    assert.equal(shown.bad, '<p>&lt;img src=x onerror=alert(1)&gt; [a](javascript:alert(1)) ' +
        '<code>&lt;script&gt;</code></p>');
    assert.equal(shown.form, '<h4>Head</h4><p>one <strong>two <code>three</code></strong> <em>four</em>, ' +
        '2 * 3 * 4, snake_case\nfive</p>');
    assert.equal(shown.list, '<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul><ol start="3"><li>d</li><li>e</li></ol>');
    assert.equal(shown.table, '<div class="table" tabindex="0" role="region" aria-label="Table"><table>' +
        '<thead><tr><th>a</th><th class="right">b</th></tr></thead><tbody><tr><td><code>x|y</code></td>' +
        '<td class="right">&lt;b&gt;</td></tr><tr><td>2</td><td class="right"></td></tr></tbody></table></div><p>after</p>');
    assert.equal(shown.not, '<p>a | b\nc | d</p>');
    assert.equal(shown.quote, '<blockquote><p>one</p><ul><li>two</li></ul></blockquote><hr><p>three</p>');
    assert.ok(shown.quotes > 3000, 'not nested to the end');
    assert.match(shown.code, /<code>if \(a &lt; b\) \*\*no\*\*;<\/code><\/pre><\/figure><p>after<\/p>$/);
    assert.match(shown.open, /<code>not closed<\/code>/);
    assert.ok(shown.sizes[0] > 6000 && shown.sizes[1] > 200000);
    assert.deepEqual(complaints, []);
    await context.close();
});

test('code is copied, by its button and by the keyboard', async () => {
    const { page, context, complaints } = await open();
    const code = 'if (a < b)\n    return "x";';
    await page.evaluate((text) => localStorage.setItem('deepinfer.conversation', JSON.stringify(
        [{ role: 'user', content: 'Code?' }, { role: 'assistant', thought: '', calls: [], finish: 'stop',
            problem: null, stopped: false, tokens: 9, atFirst: 1, firstMs: 2, decodeMs: 3, usage: null,
            content: text }])),
        'Here:\n```c\n' + code + '\n```\nand\n```\nmore\n```\n');
    await page.reload();
    const read = () => page.evaluate(() => globalThis.copied);
    // A browser with a clipboard, and one that has none for such a page.
    await page.evaluate(() => Object.defineProperty(navigator, 'clipboard', { configurable: true,
        value: { writeText: async (text) => { globalThis.copied = text; } } }));
    const buttons = page.getByRole('button', { name: 'Copy code', exact: true });
    await eventually('both are there', async () => await buttons.count() === 2);
    await buttons.first().click();
    await page.getByText('Copied', { exact: true }).waitFor();
    assert.equal(await read(), code);
    await page.locator('pre[aria-label="Code"]').focus();
    await page.keyboard.press('Shift+Tab');
    await page.keyboard.press('Enter');
    await eventually('the second', async () => await read() === 'more');
    await page.evaluate(() => {
        Object.defineProperty(navigator, 'clipboard', { value: undefined });
        document.addEventListener('copy', () => {
            globalThis.copied = 'selected: ' + document.activeElement.value;
        });
    });
    await buttons.first().click();
    await eventually('by a selection', async () => await read() === 'selected: ' + code);
    assert.equal(await page.locator('textarea.off').count(), 0);
    assert.ok(await buttons.first().evaluate((e) => e === document.activeElement), 'the focus is back');
    await page.getByRole('button', { name: 'Copy', exact: true }).click(); // the whole answer
    await eventually('the same way', async () => (await read()).startsWith('selected: Here:\n```c'));
    assert.deepEqual(complaints, []);
    await context.close();
});

test('a seed is sent as it was written, or not at all', async () => {
    const { page, context } = await open();
    const bodies = [];
    page.on('request', (r) => r.method() === 'POST' && bodies.push(r.postData()));
    await page.getByRole('button', { name: 'Settings' }).click();
    await page.getByLabel('Seed').fill('9007199254740993');
    await page.keyboard.press('Escape');
    await ask(page, 'Hi');
    await page.getByRole('alert').filter({ hasText: /Seed: / }).waitFor();
    await eventually('the field has the focus', () =>
        page.getByLabel('Seed').evaluate((e) => e === document.activeElement));
    assert.equal(bodies.length, 0);
    await page.getByLabel('Seed').fill('9007199254740991');
    await page.keyboard.press('Escape');
    await ask(page, 'Hi');
    await eventually('it is asked', () => bodies.length === 1);
    assert.match(bodies[0], /"seed":9007199254740991[,}]/);
    await context.close();
});

// ---- For everyone ----

// What a checker of accessibility looks for, of what is visible now: [what is wrong].
const faults = (page) => page.evaluate(() => {
    const found = [], visible = (e) => e.checkVisibility({ visibilityProperty: true });
    const name = (e) => e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent.trim();
    for (const e of document.querySelectorAll('button, input, select, textarea, a, summary')) {
        if (visible(e) && !name(e).trim()) found.push('no name: ' + e.outerHTML);
    }
    const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
    for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push('twice: ' + id);
    for (const attribute of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for']) {
        for (const e of document.querySelectorAll(`[${attribute}]`)) {
            if (!ids.includes(e.getAttribute(attribute))) found.push('points nowhere: ' + e.outerHTML);
        }
    }
    if (!document.documentElement.lang || !document.title) found.push('no language or title');
    if (document.querySelectorAll('main, h1').length !== 2) found.push('one main and one h1');
    // Contrast of all text, against the nearest ground that is painted.
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
    const ground = (e) => {
        for (; e; e = e.parentElement) {
            const color = rgb(getComputedStyle(e).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255];
    };
    let seen = 0;
    for (const e of document.body.querySelectorAll('*')) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!visible(e) || !(own || e.placeholder)) continue;
        seen++;
        const pseudo = e.placeholder && !e.value ? '::placeholder' : null;
        const value = ratio(rgb(getComputedStyle(e, pseudo).color), ground(e));
        if (value < 4.5) found.push(`contrast ${value.toFixed(2)}: ${e.outerHTML.slice(0, 120)}`);
        if (['INPUT', 'TEXTAREA', 'SELECT'].includes(e.tagName)) {
            const edge = ratio(rgb(getComputedStyle(e).borderTopColor), ground(e.parentElement));
            if (edge < 3) found.push(`edge ${edge.toFixed(2)}: ${e.id}`);
        }
    }
    if (seen < 10) found.push(`only ${seen} texts were looked at`);
    const width = document.documentElement;
    if (width.scrollWidth > width.clientWidth) found.push(`${width.scrollWidth} wide`);
    for (const e of document.querySelectorAll('button, #question')) {
        const box = e.getBoundingClientRect();
        if (visible(e) && (box.height < 24 || box.right > innerWidth + 1)) found.push('place of ' + e.outerHTML);
    }
    return found;
});

const rich = [{ role: 'user', content: 'Compare two ways to sum a list in C, briefly.' },
    { role: 'assistant', thought: 'A loop, or pairs.\nPairs lose fewer digits.', calls: [], finish: 'stop',
        content: '## Two ways\n\nA **plain loop** adds from the left; *pairwise* halves the list first.\n\n' +
            '1. The loop is `O(n)` in error.\n2. Pairs are `O(log n)`:\n   - as fast,\n   - longer to write.\n\n' +
            '```c\ndouble sum = 0;\nfor (size_t i = 0; i < n; i++) sum += values[i]; /* and a line that is too ' +
            'long for a telephone */\n```\nTake pairs when digits matter.\n\n' +
            '| way | additions | error |\n| --- | --: | :-: |\n| loop | n - 1 | `O(n)` |\n\n> As always.',
        problem: null, stopped: false, tokens: 120, atFirst: 1, firstMs: 214, decodeMs: 1830,
        usage: { prompt_tokens: 1412, completion_tokens: 120, prompt_tokens_details: { cached_tokens: 1280 },
            completion_tokens_details: { reasoning_tokens: 14, accepted_prediction_tokens: 61 } } },
    { role: 'user', content: 'Where is the mirror?' },
    { role: 'assistant', thought: '', content: '', finish: 'tool_calls', problem: 'The queue is full.',
        stopped: false, usage: null, tokens: 0, atFirst: 0, firstMs: null, decodeMs: 0,
        calls: [{ id: 'call_1', name: 'find_item', arguments: '{"item": "mirror", "n": 2}', result: null }] }];

for (const [name, options] of [['light', {}], ['dark', { colorScheme: 'dark' }],
    ['phone', { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true }],
    ['phone-dark', { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, colorScheme: 'dark' }]]) {
    test(`${name}: names, contrast, width`, async () => {
        const { page, context, complaints } = await open(options);
        assert.deepEqual(await faults(page), []);
        await shot(page, name + '-hello');
        await page.evaluate((turns) =>
            localStorage.setItem('deepinfer.conversation', JSON.stringify(turns)), rich);
        await page.reload();
        await page.locator('details summary').first().click();
        assert.deepEqual(await faults(page), []);
        await shot(page, name + '-end');
        await page.locator('#scroll').evaluate((e) => { e.scrollTop = 0; });
        await shot(page, name);
        await page.getByRole('button', { name: 'Settings' }).click();
        await page.getByLabel('Form of the answer').selectOption('json_schema');
        assert.deepEqual(await faults(page), []);
        await shot(page, name + '-settings');
        assert.deepEqual(complaints, []);
        await context.close();
    });
}

test('by keyboard alone', async () => {
    const { page, context } = await open();
    const focus = () => page.evaluate(() => document.activeElement.id || document.activeElement.className);
    const back = async (to) => {
        for (let i = 0; i < 9 && await focus() !== to; i++) await page.keyboard.press('Shift+Tab');
        assert.equal(await focus(), to);
    };
    assert.equal(await focus(), 'question', 'one can write at once');
    await back('skip');
    await page.keyboard.press('Enter');
    assert.equal(await focus(), 'question');
    await back('open-settings');
    await page.keyboard.press('Enter');
    assert.equal(await focus(), 'system');
    await page.keyboard.press('Escape');
    assert.equal(await focus(), 'open-settings');
    await context.close();
});

test('keys: the page opens, and asks for one', async () => {
    const guarded = await serve('--api-keys', keys, '-q');
    const { page, context } = await open({}, guarded.base);
    await ask(page, 'What is 12 + 13?');
    await page.getByRole('alert').filter({ hasText: 'an API key is needed' }).waitFor();
    await eventually('the field has the focus', () =>
        page.getByLabel('API key').evaluate((e) => e === document.activeElement));
    await page.keyboard.type('secret-alice');
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Regenerate' }).click();
    assert.match(await (await answer(page)).locator('.prose').textContent(), /./);
    assert.ok(!await page.evaluate(() => JSON.stringify(localStorage).includes('secret')));
    await context.close();
    await guarded.stop();
});

test('without the page', async () => {
    const bare = await serve('--no-page', '-q');
    for (const where of ['/', '/page/page.js']) assert.equal((await fetch(bare.base + where)).status, 404);
    assert.equal((await fetch(bare.base + '/health')).status, 200);
    await bare.stop();
});

test('the server ends well', async () => {
    await browser.close();
    await server.stop();
    fs.rmSync(path.dirname(keys), { recursive: true });
});

await runTests();
