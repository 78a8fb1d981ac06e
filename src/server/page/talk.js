// The conversation: turns, how they are kept, and how they are told to the server.
//
// A turn is {role: 'user', content} or an answer: {role: 'assistant', content, thought, calls: [{id,
// name, arguments, result}], ...what is known of how it went}. Results of calls stand with the calls;
// the server gets them as messages of their own.

const place = 'deepinfer.conversation';

export const newAnswer = () => ({ role: 'assistant', content: '', thought: '', calls: [], finish: null,
    problem: null, stopped: false, usage: null, tokens: 0, atFirst: 0, firstMs: null, decodeMs: 0 });

// As this page writes it; another version of it may have left something else.
const isTurn = (turn) => typeof turn?.content === 'string' && (turn.role === 'user' ||
    (typeof turn.thought === 'string' && Array.isArray(turn.calls)));

export function load() {
    try {
        const turns = JSON.parse(localStorage.getItem(place));
        return Array.isArray(turns) && turns.every(isTurn) ? turns : [];
    } catch {
        return [];
    }
}

// False: the browser keeps nothing, or there is no room.
export function save(turns) {
    try {
        localStorage.setItem(place, JSON.stringify(turns));
        return true;
    } catch {
        return false;
    }
}

const isEmpty = (turn) => !turn.content && !turn.thought && turn.calls.length === 0;

function answerMessages(turn) {
    const message = { role: 'assistant', content: turn.content };
    if (turn.thought) message.reasoning_content = turn.thought;
    if (turn.calls.length === 0) return [message];
    message.tool_calls = turn.calls.map((call) => ({ id: call.id, type: 'function',
        function: { name: call.name, arguments: call.arguments } }));
    return [message, ...turn.calls.map((call) => ({ role: 'tool', tool_call_id: call.id,
        content: call.result ?? '' }))];
}

export function messages(turns, system) {
    const told = turns.flatMap((turn) => turn.role === 'user' ? [{ role: 'user', content: turn.content }]
        : isEmpty(turn) ? [] : answerMessages(turn));
    return system.trim() ? [{ role: 'system', content: system }, ...told] : told;
}

// Calls that wait for what they give.
export const openCalls = (turns) =>
    (turns.at(-1)?.calls ?? []).filter((call) => call.result === null);
