// JSON, indented and coloured: names, texts, everything else.
import { el } from './dom.js';

const token = /("(?:[^"\\]|\\.)*")(\s*:)?|-?\d[\d.eE+-]*|true|false|null/g;

export function pretty(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text; // not whole yet, or a model's mistake: shown as it is
    }
}

export function jsonNode(text) {
    const shown = pretty(text), node = el('code', {});
    let at = 0;
    for (const found of shown.matchAll(token)) {
        const [whole, string, colon] = found;
        const kind = !string ? 'other' : colon ? 'name' : 'string';
        const word = string ?? whole;
        node.append(shown.slice(at, found.index), el('span', { class: kind }, word));
        at = found.index + word.length;
    }
    node.append(shown.slice(at));
    return el('pre', { class: 'json' }, node);
}

// Is a whole answer an object or a list, so that it is better read as such?
export function isJson(text) {
    if (!/^\s*[[{]/.test(text)) return false;
    try {
        JSON.parse(text);
        return true;
    } catch {
        return false;
    }
}
