// Answers that are held to a form: JSON, schemas, expressions, choices, grammars, tool calls; in every
// dialect, with thoughts and without, streamed and whole, in company.
// ctest: slow
import fs from 'node:fs';
import path from 'node:path';
import { assert, test, runTests, serve, post, stream, joinChat, metric } from './harness.mjs';
import { dialects, ask, each } from './dialects.mjs';

const server = await serve('--max-batch', '40', '--max-queue', '200');
const story = [{ role: 'user', content: 'Tell me a story about a fox.' }];
const chat = (body, on = server) => post(on, '/v1/chat/completions',
    { messages: story, thinking: { type: 'disabled' }, max_tokens: 150, ...body });
const text = (r) => {
    assert.equal(r.status, 200, r.text);
    return r.json.choices[0].message.content;
};
const schema = { type: 'object', properties: {
    name: { type: 'string', maxLength: 8 }, age: { type: 'integer', minimum: 0, maximum: 150 },
    kind: { enum: ['fox', 'crow'] }, tags: { type: 'array', items: { type: 'boolean' }, maxItems: 3 },
}, required: ['name', 'age', 'kind', 'tags'] };

function checkSchema(value) {
    assert.deepEqual(Object.keys(value), ['name', 'age', 'kind', 'tags']);
    assert.equal(typeof value.name, 'string');
    assert.ok([...value.name].length <= 8);
    assert.ok(Number.isInteger(value.age) && value.age >= 0 && value.age <= 150);
    assert.ok(['fox', 'crow'].includes(value.kind));
    assert.ok(value.tags.length <= 3 && value.tags.every((t) => typeof t === 'boolean'));
}

test('a schema: every answer that ends is valid, whatever the temperature', async () => {
    const format = { type: 'json_schema', json_schema: { name: 'animal', strict: true, schema } };
    let ended = 0;
    for (const temperature of [0, 1, 2]) {
        const r = await chat({ response_format: format, temperature, n: 12, seed: 5, max_tokens: 300 });
        assert.equal(r.status, 200, r.text);
        for (const c of r.json.choices) {
            if (c.finish_reason !== 'stop') continue;
            checkSchema(JSON.parse(c.message.content));
            ended++;
        }
    }
    assert.ok(ended >= 18, `${ended} of 36`);
});

test('behind a thought, and the thought is free', async () => {
    const body = { thinking: { type: 'enabled' }, temperature: 0, max_tokens: 300,
        messages: [{ role: 'user', content: 'What is 12 + 13?' }],
        response_format: { type: 'json_schema', json_schema: { name: 's', schema:
            { type: 'object', properties: { sum: { type: 'integer' } }, required: ['sum'] } } } };
    const r = await chat(body);
    const { message, finish_reason: finish } = r.json.choices[0];
    assert.match(message.reasoning_content, /So 12 \+ 13 = 25/);
    assert.equal(finish, 'stop');
    assert.ok(Number.isInteger(JSON.parse(message.content).sum), message.content);
    const { choices } = joinChat((await stream(server, '/v1/chat/completions', body)).events);
    assert.equal(choices[0].text, message.content);
    assert.equal(choices[0].thought, message.reasoning_content);
});

test('a form holds for a beginning and the answer together', async () => {
    const from = (content) => ({ messages: [...story, { role: 'assistant', content, prefix: true }] });
    const object = { response_format: { type: 'json_object' } };
    const animal = { response_format: { type: 'json_schema', json_schema: { name: 'animal', schema } } };
    let ended = 0;
    for (const [form, begin] of [[object, '{"a":'], [object, '{\n  "a": [1,2],"b'], [object, '{"ä": "\\u00'],
        [animal, '{"name":"Ren'], [animal, '{'], [{ guided_choice: ['a fox', 'a crow'] }, 'a c'],
        [{ regex: '(red|green) [0-9]{3}' }, 'green 1']]) {
        const body = { ...from(begin), ...form, temperature: 1, seed: 3, n: 4, max_tokens: 300 };
        const r = await chat(body);
        assert.equal(r.status, 200, r.text);
        for (const c of r.json.choices) {
            if (c.finish_reason !== 'stop') continue;
            const whole = begin + c.message.content;
            ended++;
            if (form === object) assert.equal(typeof JSON.parse(whole), 'object');
            if (form === animal) checkSchema(JSON.parse(whole));
            if (form.guided_choice) assert.equal(whole, 'a crow');
            if (form.regex) assert.match(whole, /^green 1[0-9]{2}$/);
        }
    }
    assert.ok(ended >= 14, `${ended} of 28`);
    const streamed = await stream(server, '/v1/chat/completions', { ...from('a c'), guided_choice: ['a fox', 'a crow'],
        thinking: false });
    assert.equal(joinChat(streamed.events).choices[0].text, 'row');
    for (const [form, begin] of [[object, '[1'], [object, 'Here it is: {'], [animal, '{"age": 151'],
        [{ guided_choice: ['a fox'] }, 'a foxes']]) {
        const r = await chat({ ...from(begin), ...form });
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, 'messages');
        assert.match(r.json.error.message, /^messages: the form that is asked for has no text that begins as/);
    }
    const whole = await chat({ ...from('a fox'), guided_choice: ['a fox'] });
    assert.equal(text(whole), '');
});

test('only some of the tools may be called', async () => {
    const tools = ['red', 'green', 'blue'].map((name) => ({ name, description: name,
        parameters: { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] } }));
    const names = (list) => list.map((name) => ({ type: 'function', name }));
    const of = (mode, list) => ({
        chat: { type: 'allowed_tools', allowed_tools: { mode,
            tools: list.map((name) => ({ type: 'function', function: { name } })) } },
        responses: { type: 'allowed_tools', mode, tools: names(list) } });
    const openai = tools.map((f) => ({ type: 'function', function: f }));
    const free = await chat({ tools: openai, tool_choice: 'required', temperature: 2, seed: 1 });
    for (const list of [['blue'], ['green', 'red']]) {
        const r = await chat({ tools: openai, tool_choice: of('required', list).chat, temperature: 2, seed: 2,
            n: 8, max_tokens: 200 });
        assert.equal(r.status, 200, r.text);
        assert.equal(r.json.usage.prompt_tokens, free.json.usage.prompt_tokens);
        const called = r.json.choices.flatMap((c) => (c.message.tool_calls ?? []).map((k) => k.function.name));
        assert.ok(called.length > 0 && called.every((n) => list.includes(n)), JSON.stringify(called));
        const items = await post(server, '/v1/responses', { input: 'x', reasoning: { effort: 'none' }, temperature: 2,
            seed: 2, max_output_tokens: 200, tools: tools.map((f) => ({ type: 'function', ...f })),
            tool_choice: of('required', list).responses });
        assert.equal(items.status, 200, items.text);
        const made = items.json.output.filter((o) => o.type === 'function_call').map((o) => o.name);
        assert.ok(made.length > 0 && made.every((n) => list.includes(n)), JSON.stringify(made));
    }
    const asked = { messages: [{ role: 'user', content: 'What is the weather in Paris?' }], temperature: 0,
        tools: openai.concat([{ type: 'function', function: { name: 'get_weather', description: 'Weather of a city',
            parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } } }]) };
    for (const list of [['get_weather'], ['red']]) {
        const r = await chat({ ...asked, tool_choice: of('auto', list).chat });
        assert.equal(r.status, 200, r.text);
        const calls = r.json.choices[0].message.tool_calls ?? [];
        assert.ok(calls.every((k) => list.includes(k.function.name)), r.text);
    }
    for (const [choice, why] of [[of('auto', ['grey']).chat, /item 0 of allowed_tools is none of the tools/],
        [of('maybe', ['red']).chat, /a mode, auto or required/], [of('auto', []).chat, /a list of tools/],
        [{ type: 'allowed_tools' }, /a mode/]]) {
        const r = await chat({ tools: openai, tool_choice: choice });
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, 'tool_choice');
        assert.match(r.json.error.message, why);
    }
    for (const [more, param] of [[{ strict: true, parameters: odd }, 'tools[2]'],
        [{ strict: 5 }, 'tools[2].strict']]) { // its place among all that were sent
        const list = openai.map((k) => (k.function.name === 'blue' ?
            { type: 'function', function: { ...k.function, ...more } } : k));
        const r = await chat({ tools: list, tool_choice: of('auto', ['blue']).chat });
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, param, r.text);
    }
});

test('the other forms, under their names', async () => {
    const regex = '(red|green) [0-9]{3}', choices = ['a fox', 'a crow'];
    const gbnf = 'root ::= "<" [a-c]+ ">"';
    const cases = [
        [{ structured_outputs: { regex } }, /^(red|green) [0-9]{3}$/],
        [{ guided_regex: regex }, /^(red|green) [0-9]{3}$/],
        [{ regex }, /^(red|green) [0-9]{3}$/],
        [{ structured_outputs: { choice: choices } }, /^a (fox|crow)$/],
        [{ guided_choice: choices }, /^a (fox|crow)$/],
        [{ structured_outputs: { grammar: gbnf } }, /^<[abc]+>?$/],
        [{ guided_grammar: gbnf }, /^<[abc]+>?$/],
        [{ ebnf: gbnf }, /^<[abc]+>?$/],
        [{ response_format: { type: 'json_object' } }, /^\{/],
        [{ structured_outputs: { json_object: true } }, /^\{/],
        [{ guided_json: { type: 'array', items: { const: 7 }, minItems: 2, maxItems: 2 } },
            /^\[\s*7\s*,\s*7\s*\]$/],
        [{ structured_outputs: { json: '{"const": "yes"}' } }, /^"yes"$/],
        [{ json_schema: '{"enum": [true]}' }, /^true$/],
    ];
    for (const [form, want] of cases) {
        for (const temperature of [0, 1.5]) {
            const r = await chat({ ...form, temperature, seed: 3, max_tokens: 60 });
            const cut = r.json.choices?.[0].finish_reason === 'length';
            if (!cut) assert.match(text(r), want, JSON.stringify(form));
            // Only what has no end of its own may be cut.
            assert.ok(!cut || form.response_format || form.structured_outputs?.json_object ||
                JSON.stringify(form).includes('root'), r.text);
        }
    }
    const said = await post(server, '/v1/completions', { prompt: 'The colour is ', max_tokens: 20,
        structured_outputs: { regex }, n: 3, echo: true });
    for (const c of said.json.choices) assert.match(c.text, /^The colour is (red|green) [0-9]{3}$/);
});

// Nobody can enforce it.
const odd = { type: 'object', properties: { list: { type: 'array', contains: { const: 1 } } } };

test('what cannot be enforced is refused, by field and place', async () => {
    const bad = [
        [{ response_format: { type: 'json_schema', json_schema: { name: 'x', schema:
            { type: 'array', contains: { const: 1 } } } } }, 'response_format', /contains/],
        [{ structured_outputs: { regex: '(?=a)b' } }, 'structured_outputs', /look/],
        [{ guided_grammar: 'root ::= root "a" | "b"' }, 'guided_grammar', /root/],
        [{ response_format: { type: 'yaml' } }, 'response_format', /json_schema/],
        [{ response_format: { type: 'json_schema' } }, 'response_format', /schema/],
        [{ structured_outputs: { structural_tag: {} } }, 'structured_outputs', /structural_tag/],
        [{ regex: 'a', response_format: { type: 'json_object' } }, 'regex', /another form/],
        [{ regex: 5 }, 'regex', /string/],
        [{ tool_choice: 'required' }, 'tool_choice', /no tools/],
        [{ response_format: { type: 'json_object' }, regex: 'a',
            tools: [{ type: 'function', function: { name: 'f' } }] }, 'regex', /another form/],
        [{ response_format: { type: 'json_object' }, tools: [{ type: 'function', function: { name: 'f' } },
            { type: 'function', function: { name: 'g', strict: true, parameters: odd } }] }, 'tools[1]',
        /^tools\[1\]: g: .*contains/],
        [{ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: odd } },
            tools: [{ type: 'function', function: { name: 'f' } }] }, 'response_format', /contains/],
        [{ tools: [{ type: 'function', function: { name: 'g', strict: true, parameters: odd } }],
            tool_choice: 'required' }, 'tools[0]', /^tools\[0\]: g: .*contains/],
        [{ regex: '(' }, 'regex', /^regex: (?!regex)/],
        [{ guided_regex: '(' }, 'guided_regex', /^guided_regex: regex: /],
        ...[false, true].map((strict) => [{ tools: [{ type: 'function', function: { name: 'f', strict } }],
            tool_choice: { type: 'function', function: { name: 'g' } } }, 'tool_choice',
        /^tool_choice: there is no tool g$/]),
    ];
    for (const [form, param, why] of bad) {
        const r = await chat(form);
        assert.equal(r.status, 400, r.text);
        assert.equal(r.json.error.param, param, r.text);
        assert.match(r.json.error.message, why);
        assert.notEqual(r.json.error.code, 'context_length_exceeded');
    }
});

// ---- Tools ----

const tools = [
    { name: 'get_weather', description: 'Weather of a city.', parameters: { type: 'object',
        properties: { city: { enum: ['Rome', 'Oslo'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
        required: ['city', 'days'] } },
    { name: 'add', description: 'Add.', parameters: { type: 'object', properties: {} } }];
const strict = tools.map((f) => ({ ...f, strict: true }));
const openai = (list) => list.map((f) => ({ type: 'function', function: f }));

function checkCall(name, given) {
    const value = typeof given === 'string' ? JSON.parse(given) : given;
    if (name !== 'get_weather') return assert.equal(name, 'add');
    assert.deepEqual(Object.keys(value), ['city', 'days']);
    assert.ok(['Rome', 'Oslo'].includes(value.city));
    assert.ok(Number.isInteger(value.days) && value.days >= 1 && value.days <= 9);
}

test('required, named and strict calls', async () => {
    const marker = (await post(server, '/tokenize', { prompt: '</think>', add_special_tokens: false }))
        .json.tokens[0];
    for (const thinking of ['disabled', 'enabled']) {
        for (const [choice, name] of [['required', null],
            [{ type: 'function', function: { name: 'get_weather' } }, 'get_weather'],
            [{ type: 'function', function: { name: 'add' } }, 'add']]) {
            const body = { tools: openai(strict), tool_choice: choice, thinking: { type: thinking },
                temperature: 1, seed: 2, n: 4, max_tokens: 400, parallel_tool_calls: false,
                logit_bias: { [marker]: 8 } }; // thoughts are short
            const r = await chat(body);
            let called = 0;
            assert.equal(r.status, 200, r.text);
            for (const c of r.json.choices) {
                if (c.finish_reason !== 'tool_calls') continue;
                called++;
                assert.equal(c.message.tool_calls.length, 1);
                const f = c.message.tool_calls[0].function;
                if (name) assert.equal(f.name, name);
                checkCall(f.name, f.arguments);
                assert.ok(!c.message.content);
            }
            assert.ok(called >= 2, JSON.stringify(r.json.choices));
            const { choices } = joinChat((await stream(server, '/v1/chat/completions',
                { messages: story, ...body })).events);
            assert.deepEqual(choices.map((c) => c.calls.map((x) => [x.name, x.arguments])),
                r.json.choices.map((c) => (c.message.tool_calls ?? []).map((x) =>
                    [x.function.name, x.function.arguments])));
        }
    }
});

const tasks = fs.readFileSync(path.join(process.env.SOURCE, 'models/demo/eval/tool_call.jsonl'),
    'utf8').trim().split('\n').slice(0, 4).map((l) => JSON.parse(l));

test('calls that must come follow schemas that nobody called strict', async () => {
    for (const [choice, name] of [['required', null],
        [{ type: 'function', function: { name: 'get_weather' } }, 'get_weather']]) {
        const r = await chat({ tools: openai(tools), tool_choice: choice, temperature: 1.5, seed: 4, n: 8,
            max_tokens: 400, parallel_tool_calls: false });
        assert.equal(r.status, 200, r.text);
        const calls = r.json.choices.flatMap((c) => c.message.tool_calls ?? []);
        assert.ok(calls.length >= 4, r.text);
        for (const { function: f } of calls) {
            if (name) assert.equal(f.name, name);
            if (f.name === 'get_weather') checkCall(f.name, f.arguments);
        }
    }
    // What cannot be enforced stays free: the answer does not fail.
    const r = await chat({ tools: openai([{ name: 'odd', parameters: odd }]), tool_choice: 'required',
        temperature: 1, seed: 1, n: 4, max_tokens: 400, parallel_tool_calls: false });
    assert.equal(r.status, 200, r.text);
    assert.ok(r.json.choices.some((c) => c.message.tool_calls?.[0].function.name === 'odd'), r.text);
});

// A form beside tools that may be called: the answer is one or the other, never both, never neither.
const beside = {
    chat: (s) => ({ response_format: { type: 'json_schema', json_schema: { name: 'a', schema: s } } }),
    responses: (s) => ({ text: { format: { type: 'json_schema', name: 'a', schema: s } } }),
    messages: (s) => ({ output_config: { format: { type: 'json_schema', schema: s } } }),
};

test('a form beside tools: the calls or the form', async () => {
    const ids = async (prompt) => (await post(server, '/tokenize', { prompt, add_special_tokens: false }))
        .json.tokens;
    // A block of calls begins with newlines, a form has none.
    const noCalls = Object.fromEntries([...await ids('\n'), ...await ids('\n\n')].map((t) => [t, -1000]));
    const sum = { type: 'object', properties: { sum: { type: 'integer' } }, required: ['sum'] };
    const task = tasks[0], [want] = task.tool_calls;
    const turns = [{ user: task.messages.at(-1).content }];
    for (const isStrict of [false, true]) {
        const options = { thinking: false, length: 300, system: task.messages[0].content,
            tools: task.messages[0].tools.map((f) => ({ ...f, strict: isStrict })) };
        await each(async (name, streamed) => {
            const got = await ask(server, name, streamed, { ...options, more: beside[name](sum) }, turns);
            assert.deepEqual(got.calls.map((c) => [c.name, JSON.parse(c.arguments)]),
                [[want.name, want.arguments]]);
            assert.equal(got.text, '');
            assert.equal(got.finish, dialects[name].finishes.calls);
            const form = await ask(server, name, streamed, { ...options, thinking: true,
                more: { ...beside[name](sum), logit_bias: noCalls } }, turns);
            assert.deepEqual(form.calls, []);
            assert.deepEqual(Object.keys(JSON.parse(form.text)), ['sum']);
            assert.equal(form.finish, dialects[name].finishes.stop);
        });
    }
    const messages = task.messages.map(({ tools: _, ...m }) => m);
    const body = { messages, tools: openai(task.messages[0].tools), max_tokens: 300 };
    // Whatever is drawn; the other forms; a call that must come; none that may.
    const many = await chat({ ...body, ...beside.chat(sum), n: 16, temperature: 2, seed: 3 });
    for (const c of many.json.choices) {
        assert.ok(!c.message.content || !c.message.tool_calls, many.text);
        if (c.finish_reason === 'stop') assert.ok(Number.isInteger(JSON.parse(c.message.content).sum));
        else if (c.finish_reason === 'tool_calls') assert.ok(c.message.tool_calls.length >= 1);
        else assert.equal(c.finish_reason, 'length');
    }
    for (const [form, right] of [[{ structured_outputs: { regex: 'a{3}' } }, /^aaa$/],
        [{ guided_choice: ['yes', 'no'] }, /^(yes|no)$/], [{ ebnf: 'root ::= "<" [0-9] ">"' }, /^<[0-9]>$/],
        [{ response_format: { type: 'json_object' } }, /^\{/]]) {
        const said = await chat({ ...body, ...form, logit_bias: noCalls, temperature: 0 });
        assert.match(text(said), right);
        const called = await chat({ ...body, ...form, temperature: 0 });
        assert.equal(called.json.choices[0].message.tool_calls[0].function.name, want.name);
    }
    const must = await chat({ ...body, ...beside.chat(sum), tool_choice: 'required', temperature: 0 });
    assert.equal(must.json.choices[0].message.tool_calls[0].function.name, want.name);
    const none = await chat({ ...body, ...beside.chat(sum), tool_choice: 'none', temperature: 0 });
    assert.deepEqual(Object.keys(JSON.parse(text(none))), ['sum']);
});

// The length ends it inside a call: what there is of it is text, and no call is told.
test('a call that is cut by length is text', async () => {
    const task = tasks[0];
    const options = { thinking: false, system: task.messages[0].content, tools: task.messages[0].tools };
    const turns = [{ user: task.messages.at(-1).content }];
    const must = { chat: { tool_choice: 'required' }, responses: { tool_choice: 'required' },
        messages: { tool_choice: { type: 'any' } } };
    for (const forced of [false, true]) {
        await each(async (name, streamed) => {
            const with_ = (length) => ask(server, name, streamed,
                { ...options, length, more: forced ? must[name] : {} }, turns);
            const whole = await with_(300);
            assert.equal(whole.calls.length, 1);
            for (const length of [4, 12, whole.answer >> 1]) {
                const cut = await with_(length);
                assert.deepEqual(cut.calls, []);
                assert.equal(cut.finish, dialects[name].finishes.length);
                assert.equal(cut.answer, length);
                assert.match(cut.text, /^<｜DSML｜/);
            }
        });
    }
});

test('strict tools and a free choice: the model\'s own tasks', async () => {
    for (const task of tasks) {
        const declared = task.messages[0].tools.map((f) => ({ ...f, strict: true }));
        const messages = task.messages.map(({ tools: _, ...m }) => m);
        const r = await chat({ messages, tools: openai(declared), temperature: 0 });
        const [call] = r.json.choices[0].message.tool_calls;
        assert.equal(call.function.name, task.tool_calls[0].name);
        assert.deepEqual(JSON.parse(call.function.arguments), task.tool_calls[0].arguments);
    }
});

test('the other dialects', async () => {
    const one = await post(server, '/v1/responses', { input: 'Tell me.', reasoning: { effort: 'none' },
        max_output_tokens: 300, temperature: 0, text: { format: { type: 'json_schema', name: 'a', schema } } });
    assert.equal(one.status, 200, one.text);
    if (one.json.status === 'completed') checkSchema(JSON.parse(one.json.output.at(-1).content[0].text));
    const two = await post(server, '/v1/responses', { input: 'Tell me.', reasoning: { effort: 'none' },
        max_output_tokens: 300, temperature: 0, tool_choice: { type: 'function', name: 'get_weather' },
        parallel_tool_calls: false, tools: strict.map((f) => ({ type: 'function', ...f })) });
    const call = two.json.output.find((o) => o.type === 'function_call');
    checkCall(call.name, call.arguments);
    const ask = { max_tokens: 300, temperature: 0, thinking: { type: 'disabled' },
        messages: [{ role: 'user', content: 'Tell me.' }],
        tools: strict.map((f) => ({ name: f.name, description: f.description, strict: true,
            input_schema: f.parameters })) };
    for (const choice of [{ type: 'any', disable_parallel_tool_use: true },
        { type: 'tool', name: 'get_weather', disable_parallel_tool_use: true }]) {
        const three = await post(server, '/v1/messages', { ...ask, tool_choice: choice });
        assert.equal(three.status, 200, three.text);
        const use = three.json.content.find((b) => b.type === 'tool_use');
        checkCall(use.name, use.input);
        assert.equal(three.json.stop_reason, 'tool_use');
    }
    const four = await post(server, '/v1/messages', { max_tokens: 300, temperature: 0,
        thinking: { type: 'disabled' }, messages: ask.messages,
        output_config: { format: { type: 'json_schema', schema } } });
    assert.equal(four.status, 200, four.text);
    if (four.json.stop_reason === 'end_turn') checkSchema(JSON.parse(four.json.content[0].text));
});

// ---- Company ----

test('many at once, more than a step has masks for, beside free ones', async () => {
    const held = (i) => chat({ structured_outputs: { regex: `[a-f]{${i + 5}}` }, seed: i });
    const free = (i) => chat({ messages: [{ role: 'user', content: 'What is 12 + 13?' }], seed: i,
        temperature: 0 });
    const alone = text(await free(0));
    const all = await Promise.all(Array.from({ length: 60 }, (_, i) => i % 6 ? held(i) : free(i)));
    all.forEach((r, i) => {
        if (i % 6) assert.match(text(r), new RegExp(`^[a-f]{${i + 5}}$`));
        else assert.equal(text(r), alone);
    });
});

// The same text, token by token, with drafts and without: forms, thoughts, stops, calls, company.
test('drafts change nothing', async () => {
    const named = { type: 'function', function: { name: 'add' } };
    const forms = [{ response_format: { type: 'json_schema', json_schema: { schema } } },
        { structured_outputs: { regex: '[A-Z][a-z]{3,20}\\.' } },
        { structured_outputs: { grammar: 'root ::= "<" ("a" | "bc")+ ">"' }, stop: ['cb', 'aa'] },
        { response_format: { type: 'json_schema', json_schema: { schema } }, n: 3,
            frequency_penalty: 0.5 },
        { tools: openai(strict), tool_choice: 'required', thinking: { type: 'enabled' },
            messages: [{ role: 'user', content: 'What is 12 + 13?' }], max_tokens: 300 },
        { tools: openai(strict), tool_choice: named, parallel_tool_calls: false, n: 2 },
        { tools: openai(strict), ...beside.chat(schema) },
        { tools: openai(strict), max_tokens: 60 }, {}];
    const bodies = forms.flatMap((form) => [{ ...form, temperature: 0 },
        { ...form, temperature: 1, seed: 9 }]);
    const answers = [], accepted = [];
    for (const options of [['--spec', 'off'], ['--spec', 'fixed'],
        ['--spec', 'scheduled'], ['--spec', 'fixed', '--max-batch', '2']]) {
        const other = await serve(...options);
        const got = await Promise.all(bodies.map((b) => chat({ ...b, logprobs: true }, other)));
        answers.push(got.map((r) => {
            assert.equal(r.status, 200, r.text);
            return r.json.choices.map((c) => [c.message.content, c.message.reasoning_content,
                (c.message.tool_calls ?? []).map((t) => t.function), c.finish_reason,
                c.logprobs.content.map((t) => t.logprob)]);
        }));
        accepted.push(await metric(other, 'deepinfer:spec_decode_num_accepted_tokens_total'));
        await other.stop();
    }
    for (const got of answers.slice(1)) assert.deepEqual(got, answers[0]);
    assert.equal(accepted[0], 0);
});

// What must come next is verified without a draft pass. Of these letters no two are one token of the demo
// model's, so that nothing is left to a draw: blocks of 1 + 5 tokens, whatever the temperature.
test('what a schema leaves no choice about comes by the block', async () => {
    const one = await serve('--spec', 'fixed');
    const fixed = { const: '~^QZXJ~`^QQZZ~VKQJXZ^~|QZ' };
    const r = await chat({ temperature: 1.5,
        response_format: { type: 'json_schema', json_schema: { schema: fixed } } }, one);
    assert.equal(JSON.parse(text(r)), fixed.const);
    const n = r.json.usage.completion_tokens;
    assert.ok(n >= fixed.const.length);
    const accepted = await metric(one, 'deepinfer:spec_decode_num_accepted_tokens_total');
    assert.ok(accepted >= 0.75 * n, `${accepted} of ${n}`);
    await one.stop();
});

test('all of it in the end', () => server.stop());
await runTests();
