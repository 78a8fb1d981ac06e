// A model's text as elements: paragraphs, headings, lists, tables, quotes, rules, fenced code, `code`,
// **bold**, *emphasis*.
// Everything else, links and markup among it, stays the text that it is.
import { copyButton, el } from './dom.js';
import { jsonNode } from './json.js';

const inlineForms = [
    [/`([^`\n]+)`/, (m) => el('code', {}, m[1])],
    [/\*\*(?=\S)([^\n]+?\S|\S)\*\*(?!\*)/, (m, depth) => el('strong', {}, ...inline(m[1], depth))],
    [/(?<![\w*])\*(?=[^\s*])([^*\n]*[^\s*])\*(?![\w*])/, (m, depth) => el('em', {}, ...inline(m[1], depth))],
];

// The form that begins first: its match and its maker.
function firstForm(text) {
    let first = null;
    for (const [form, make] of inlineForms) {
        const found = form.exec(text);
        if (found && (!first || found.index < first.found.index)) first = { found, make };
    }
    return first;
}

function inline(text, depth = 0) {
    const nodes = [];
    for (let first; depth < 4 && (first = firstForm(text));) {
        const { found, make } = first;
        nodes.push(text.slice(0, found.index), make(found, depth + 1));
        text = text.slice(found.index + found[0].length);
    }
    nodes.push(text);
    return nodes.filter((node) => node !== '');
}

const fence = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const heading = /^#{1,6} +(.*?)#*$/;
const rule = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const quoted = /^ {0,3}> ?/;
const item = /^(\s*)([-*+]|\d{1,9}[.)]) +(.*)$/;

function code(lines, language) {
    const text = lines.join('\n');
    const body = language === 'json' ? jsonNode(text) : el('pre', {}, el('code', {}, text));
    body.setAttribute('tabindex', '0');
    body.setAttribute('role', 'region');
    body.setAttribute('aria-label', language ? `Code, ${language}` : 'Code');
    return el('figure', {}, el('figcaption', {}, el('span', {}, language), copyButton(text, 'Code')), body);
}

// The items from lines[at] on, those that stand deeper as lists of their own.
function list(lines, at) {
    const [, indent, mark] = item.exec(lines[at]);
    const ordered = /\d/.test(mark);
    const node = el(ordered ? 'ol' : 'ul', ordered && parseInt(mark) !== 1 ? { start: parseInt(mark) } : {});
    while (at < lines.length) {
        const found = item.exec(lines[at]);
        if (!found) {
            if (!node.lastChild || !/^\s+\S/.test(lines[at])) break;
            node.lastChild.append('\n', ...inline(lines[at++].trim()));
        } else if (found[1].length > indent.length + 1) {
            const [inner, next] = list(lines, at);
            node.lastChild.append(inner);
            at = next;
        } else if (found[1].length + 1 < indent.length || /\d/.test(found[2]) !== ordered) {
            break;
        } else {
            node.append(el('li', {}, ...inline(found[3])));
            at++;
        }
    }
    return [node, at];
}

const cells = (line) => line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll('\\|', '|'));

// A line of cells, and below it as many of dashes.
function isTable(lines, at) {
    if (!lines[at].includes('|') || !lines[at + 1]?.includes('-')) return false;
    const dashes = cells(lines[at + 1]);
    return dashes.length === cells(lines[at]).length && dashes.every((cell) => /^:?-+:?$/.test(cell));
}

// The rows from lines[at] on; one that is too short or too long gets the width of the head.
function table(lines, at) {
    const sides = cells(lines[at + 1]).map((cell) =>
        (!cell.endsWith(':') ? '' : cell.startsWith(':') ? 'middle' : 'right'));
    const row = (kind, line) => {
        const texts = cells(line);
        return el('tr', {}, ...sides.map((side, i) =>
            el(kind, side ? { class: side } : {}, ...inline(texts[i] ?? ''))));
    };
    const head = el('thead', {}, row('th', lines[at])), body = el('tbody', {});
    for (at += 2; at < lines.length && lines[at].includes('|'); at++) body.append(row('td', lines[at]));
    const node = el('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' },
        el('table', {}, head, body));
    return [node, at];
}

// The lines from lines[at] on that begin with >, without it.
function quote(lines, at, depth) {
    const inner = [];
    for (; at < lines.length && quoted.test(lines[at]); at++) inner.push(lines[at].replace(quoted, ''));
    return [el('blockquote', {}, ...markdown(inner.join('\n'), depth + 1)), at];
}

export function markdown(text, depth = 0) {
    const lines = text.split('\n'), blocks = [];
    let paragraph = [];
    const flush = () => {
        if (paragraph.length) blocks.push(el('p', {}, ...inline(paragraph.join('\n'))));
        paragraph = [];
    };
    for (let at = 0; at < lines.length;) {
        const line = lines[at], opened = fence.exec(line);
        const maker = item.test(line) ? list : isTable(lines, at) ? table
            : depth < 4 && quoted.test(line) ? quote : null;
        if (opened) {
            const end = new RegExp(`^ {0,3}${opened[1][0]}{${opened[1].length},}\\s*$`);
            const from = ++at;
            while (at < lines.length && !end.test(lines[at])) at++;
            flush();
            blocks.push(code(lines.slice(from, at++), opened[2]));
        } else if (heading.test(line)) {
            flush();
            blocks.push(el('h4', {}, ...inline(heading.exec(line)[1].trim())));
            at++;
        } else if (rule.test(line)) {
            flush();
            blocks.push(el('hr', {}));
            at++;
        } else if (maker) {
            flush();
            const [node, next] = maker(lines, at, depth);
            blocks.push(node);
            at = next;
        } else {
            if (line.trim()) paragraph.push(line);
            else flush();
            at++;
        }
    }
    flush();
    return blocks;
}
