// The three dialects of a conversation as one: what to send for a conversation of ours, and what came
// back in the same form, whole and streamed.
import { assert, post, stream, joinChat } from './harness.mjs';

// A conversation is [{user}, {thought, text, calls: [{id, name, arguments}]}, {results: [{id, text}]}].

export const dialects = {
    chat: {
        path: '/v1/chat/completions',
        body: (o, turns) => ({ model: 'demo', temperature: 0, ...o.more,
            max_tokens: o.length, stop: o.stop,
            thinking: { type: o.thinking ? 'enabled' : 'disabled' },
            tools: o.tools?.map((f) => ({ type: 'function', function: f })),
            messages: [...(o.system ? [{ role: 'system', content: o.system }] : []),
                ...turns.flatMap((t) => t.user ? [{ role: 'user', content: t.user }]
                    : t.results ? t.results.map((r) =>
                        ({ role: 'tool', tool_call_id: r.id, content: r.text }))
                        : [{ role: 'assistant', content: t.text || null,
                            reasoning_content: t.thought,
                            tool_calls: t.calls.map((c) => ({ id: c.id, type: 'function',
                                function: { name: c.name, arguments: c.arguments } })) }])] }),
        whole: (json) => {
            const { message, finish_reason: finish } = json.choices[0];
            return { thought: message.reasoning_content ?? '', text: message.content ?? '', finish,
                calls: (message.tool_calls ?? []).map((c) =>
                    ({ id: c.id, name: c.function.name, arguments: c.function.arguments })),
                tokens: json.choices[0].logprobs?.content ?? [],
                prompt: json.usage.prompt_tokens, answer: json.usage.completion_tokens,
                cached: json.usage.prompt_tokens_details.cached_tokens };
        },
        streamed: (events) => {
            const { choices: [c], usage } = joinChat(events);
            return { thought: c.thought, text: c.text, calls: c.calls, finish: c.finish,
                tokens: c.tokens, prompt: usage.prompt_tokens, answer: usage.completion_tokens,
                cached: usage.prompt_tokens_details.cached_tokens };
        },
        stream: { stream_options: { include_usage: true } },
        finishes: { stop: 'stop', calls: 'tool_calls', length: 'length', text: 'stop' },
    },
    responses: {
        path: '/v1/responses',
        body: (o, turns) => ({ model: 'demo', temperature: 0, ...o.more,
            max_output_tokens: o.length, stop: o.stop, instructions: o.system,
            reasoning: { effort: o.thinking ? 'high' : 'none' },
            tools: o.tools?.map((f) => ({ type: 'function', ...f })),
            input: turns.flatMap((t) => t.user ? [{ role: 'user', content: t.user }]
                : t.results ? t.results.map((r) =>
                    ({ type: 'function_call_output', call_id: r.id, output: r.text }))
                    : [...(t.thought ? [{ type: 'reasoning', summary: [], content:
                        [{ type: 'reasoning_text', text: t.thought }] }] : []),
                    ...(t.text ? [{ role: 'assistant', content: t.text }] : []),
                    ...t.calls.map((c) => ({ type: 'function_call', call_id: c.id, name: c.name,
                        arguments: c.arguments }))]) }),
        whole: (json) => {
            const of = (type) => json.output.filter((o) => o.type === type);
            const join = (items) => items.flatMap((o) => o.content.map((c) => c.text)).join('');
            return { thought: join(of('reasoning')), text: join(of('message')),
                calls: of('function_call').map((c) =>
                    ({ id: c.call_id, name: c.name, arguments: c.arguments })),
                finish: json.status === 'incomplete' ? 'length' : 'done',
                prompt: json.usage.input_tokens, answer: json.usage.output_tokens,
                cached: json.usage.input_tokens_details.cached_tokens };
        },
        streamed: (events) => {
            const last = events.at(-1).data.response;
            const deltas = (type) => events.filter((e) => e.event === type)
                .map((e) => e.data.delta).join('');
            const all = dialects.responses.whole(last);
            assert.equal(deltas('response.output_text.delta'), all.text);
            assert.equal(deltas('response.reasoning_text.delta'), all.thought);
            return all;
        },
        finishes: { stop: 'done', calls: 'done', length: 'length', text: 'done' },
    },
    messages: {
        path: '/v1/messages',
        body: (o, turns) => ({ model: 'demo', temperature: 0, ...o.more, system: o.system,
            max_tokens: o.length ?? 500, stop_sequences: o.stop,
            thinking: { type: o.thinking ? 'enabled' : 'disabled' },
            tools: o.tools?.map((f) => ({ name: f.name, description: f.description,
                input_schema: f.parameters, strict: f.strict })),
            messages: turns.map((t) => t.user ? { role: 'user', content: t.user }
                : t.results ? { role: 'user', content: t.results.map((r) =>
                    ({ type: 'tool_result', tool_use_id: r.id, content: r.text })) }
                    : { role: 'assistant', content: [
                        ...(t.thought ? [{ type: 'thinking', thinking: t.thought }] : []),
                        ...(t.text ? [{ type: 'text', text: t.text }] : []),
                        ...t.calls.map((c) => ({ type: 'tool_use', id: c.id, name: c.name,
                            input: JSON.parse(c.arguments) }))] }) }),
        whole: (json) => {
            const of = (type, key) => json.content.filter((b) => b.type === type)
                .map((b) => b[key]).join('');
            return { thought: of('thinking', 'thinking'), text: of('text', 'text'),
                calls: json.content.filter((b) => b.type === 'tool_use').map((b) =>
                    ({ id: b.id, name: b.name, arguments: JSON.stringify(b.input) })),
                finish: json.stop_reason, answer: json.usage.output_tokens,
                cached: json.usage.cache_read_input_tokens,
                prompt: json.usage.input_tokens + json.usage.cache_read_input_tokens };
        },
        streamed: (events) => {
            const blocks = [];
            let end = null;
            for (const { event, data } of events) {
                assert.equal(event, data.type);
                if (event === 'content_block_start') blocks.push({ ...data.content_block, json: '' });
                const block = blocks[data.index];
                if (event === 'content_block_delta') {
                    assert.equal(data.index, blocks.length - 1);
                    if (data.delta.text) block.text += data.delta.text;
                    if (data.delta.thinking) block.thinking += data.delta.thinking;
                    if (data.delta.partial_json) block.json += data.delta.partial_json;
                }
                if (event === 'message_delta') end = data;
            }
            assert.equal(events.at(-1).event, 'message_stop');
            for (const b of blocks) if (b.type === 'tool_use') b.input = JSON.parse(b.json);
            return dialects.messages.whole({ content: blocks, usage: end.usage,
                stop_reason: end.delta.stop_reason });
        },
        finishes: { stop: 'end_turn', calls: 'tool_use', length: 'max_tokens',
            text: 'stop_sequence' },
    },
};

// What it came to: {thought, text, calls, finish, prompt, answer, cached}.
export async function ask(server, name, streamed, options, turns) {
    const d = dialects[name], body = JSON.parse(JSON.stringify(d.body(options, turns)));
    if (streamed) {
        const { events } = await stream(server, d.path, { ...body, ...d.stream });
        return d.streamed(events);
    }
    const r = await post(server, d.path, body);
    assert.equal(r.status, 200, r.text);
    return d.whole(r.json);
}

// Every dialect, whole and streamed.
export async function each(run) {
    for (const name of Object.keys(dialects)) {
        for (const streamed of [false, true]) await run(name, streamed);
    }
}
