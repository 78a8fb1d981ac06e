// A turn as an element. While an answer comes, only its parts that grew are made anew.
import { el, button } from './dom.js';
import { speed } from './ask.js';
import { markdown } from './markdown.js';
import { isJson, jsonNode, pretty } from './json.js';

const number = (value, digits = 0) => value.toLocaleString('en', { maximumFractionDigits: digits });
const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;
const time = (ms) => (ms < 1000 ? `${number(ms)} ms` : `${number(ms / 1000, 1)} s`);

export function speedText(turn) {
    const perSecond = speed(turn);
    const tokens = plural(turn.usage?.completion_tokens ?? turn.tokens, 'token', 'tokens');
    return perSecond === null ? tokens
        : `${tokens}, ${number(perSecond, perSecond < 100 ? 1 : 0)} tokens/s`;
}

// What is known of how an answer went.
function figures(turn) {
    const parts = [], u = turn.usage;
    if (turn.tokens > 0) parts.push(speedText(turn));
    if (turn.firstMs !== null) parts.push(`first after ${time(turn.firstMs)}`);
    if (u) {
        parts.push(`${number(u.prompt_tokens_details.cached_tokens)} of ${number(u.prompt_tokens)} ` +
            'prompt tokens cached');
        parts.push(`${plural(u.completion_tokens_details.accepted_prediction_tokens, 'draft', 'drafts')} ` +
            'accepted');
    }
    if (turn.stopped) parts.push('stopped');
    if (turn.finish === 'length') parts.push('cut off by its length');
    return el('span', { class: 'figures' }, ...parts.map((part) => el('span', {}, part)));
}

// ---- The parts of an answer ----

function thoughtNode(turn) {
    const summary = el('summary', {}), text = el('div', { class: 'text' });
    const node = el('details', { class: 'thought', hidden: true }, summary, text);
    return { node, show({ running }) {
        const thinking = running && !turn.content && turn.calls.length === 0;
        const n = turn.usage?.completion_tokens_details.reasoning_tokens;
        node.hidden = !turn.thought;
        summary.textContent = thinking ? 'Thinking' : n ? `Thought for ${plural(n, 'token', 'tokens')}` : 'Thought';
        summary.classList.toggle('waiting', thinking);
        if (text.textContent !== turn.thought) text.textContent = turn.thought;
    } };
}

// A call as long as nothing of it changes: what is being typed into it stays.
const callNodes = new WeakMap();
function callNode(call, onResult) {
    const known = callNodes.get(call), state = JSON.stringify([call, onResult !== null]);
    if (known?.state === state) return known.node;
    const node = makeCall(call, onResult);
    callNodes.set(call, { state, node });
    return node;
}

function makeCall(call, onResult) {
    const json = jsonNode(call.arguments);
    json.setAttribute('tabindex', '0');
    json.setAttribute('role', 'region');
    json.setAttribute('aria-label', `Arguments of ${call.name}`);
    const node = el('section', { class: 'call', 'aria-label': `Call of ${call.name}` },
        el('h4', {}, call.name, el('span', {}, 'is called')), json);
    if (call.result !== null) {
        node.append(el('div', { class: 'result' }, el('label', {}, 'Result'),
            isJson(call.result) ? jsonNode(call.result) : el('pre', {}, call.result)));
    } else if (onResult) {
        const field = el('textarea', { id: 'result-' + call.id, rows: '2', class: 'code', spellcheck: 'false' });
        node.append(el('form', { class: 'result', onsubmit: (event) => {
            event.preventDefault();
            onResult(call, field.value);
        } }, el('label', { for: field.id }, `What ${call.name} gives`), field,
        el('div', { class: 'row' }, el('button', { type: 'submit', class: 'plain' }, 'Give the result'))));
    }
    return node;
}

function problemNode(problem) {
    return el('p', { class: 'problem', role: 'alert' }, el('strong', {}, 'It did not work. '), problem);
}

// ---- Turns: {node, show({last, idle, running})}, with what their buttons do in `can` ----

function replace(node, children) {
    const same = children.length === node.childNodes.length && children.every((c, i) => c === node.childNodes[i]);
    if (!same) node.replaceChildren(...children);
}

export function answerView(turn, can) {
    const thought = thoughtNode(turn);
    const prose = el('div', { class: 'prose' }), rest = el('div', {}), foot = el('div', { class: 'foot' });
    const node = el('li', { class: 'message assistant' }, el('h3', { class: 'hidden' }, 'Answer'),
        thought.node, prose, rest, foot);
    const copy = button('Copy', () => can.copy(turn)), again = button('Regenerate', can.again);
    let shown = null, problem = null;
    function show(state) {
        const { running, last, idle } = state;
        thought.show(state);
        if (shown !== turn.content) {
            prose.replaceChildren(...(isJson(turn.content) ? [jsonNode(turn.content)] : markdown(turn.content)));
            shown = turn.content;
        }
        const nothing = running && !turn.content && !turn.thought && turn.calls.length === 0;
        prose.classList.toggle('waiting', nothing);
        node.setAttribute('aria-busy', String(running));
        if (turn.problem) problem ??= problemNode(turn.problem);
        const calls = turn.calls.map((call) => callNode(call, last && idle ? can.result : null));
        replace(rest, problem ? [...calls, problem] : calls);
        if (!running && !foot.firstChild) foot.append(figures(turn), copy, again);
        copy.hidden = !turn.content;
        again.hidden = !(last && idle);
    }
    return { node, show };
}

export function userView(turn, can) {
    const text = el('div', { class: 'text' }, turn.content), change = button('Edit', edit);
    const node = el('li', { class: 'message user' }, el('h3', { class: 'hidden' }, 'You'), text,
        el('div', { class: 'foot' }, change));
    function edit() {
        const before = [...node.childNodes];
        const field = el('textarea', { rows: '3', 'aria-label': 'Your message, edited' });
        field.value = turn.content;
        const back = () => {
            node.classList.remove('edited');
            node.replaceChildren(...before);
            change.focus();
        };
        const done = () => (field.value.trim() ? can.edit(turn, field.value) : field.focus());
        field.addEventListener('keydown', (event) => {
            if (event.key === 'Escape') back();
            else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) done();
            else return;
            event.preventDefault();
            event.stopPropagation();
        });
        node.classList.add('edited');
        node.replaceChildren(before[0], field, el('div', { class: 'row' },
            button('Cancel', back, { class: 'plain' }),
            button('Ask again', done, { class: 'strong' })));
        field.focus();
        field.setSelectionRange(field.value.length, field.value.length);
    }
    return { node, show({ idle }) { change.hidden = !idle; } };
}

export const plainText = (turn) => (isJson(turn.content) ? pretty(turn.content) : turn.content);
