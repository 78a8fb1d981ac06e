// The form of parameters: kept in the browser, the key only as long as the tab lives; and what it means
// as fields of a request.
import { $ } from './dom.js';

const place = 'deepinfer.settings', keyPlace = 'deepinfer.key';
const form = () => $('parameters');
const fields = () => [...form().elements].filter((field) => field.name);

export class Mistake extends Error {
    constructor(message, field) {
        super(message);
        this.field = field;
    }
}

function keep() {
    const values = {};
    for (const { name, value } of fields()) if (name !== 'key') values[name] = value;
    try {
        localStorage.setItem(place, JSON.stringify(values));
        sessionStorage.setItem(keyPlace, $('key').value);
    } catch { /* a browser that keeps nothing: the form itself still has them */ }
}

function recall() {
    try {
        const values = JSON.parse(localStorage.getItem(place) ?? '{}');
        for (const field of fields()) {
            if (typeof values[field.name] === 'string') field.value = values[field.name];
        }
        $('key').value = sessionStorage.getItem(keyPlace) ?? '';
    } catch { /* as above */ }
}

function readJson(field, what) {
    const text = field.value.trim();
    if (!text) return null;
    try {
        return JSON.parse(text);
    } catch (error) {
        throw new Mistake(`${what}: ${error.message}`, field);
    }
}

// A list of tools as OpenAI has it, or of bare functions.
function readTools() {
    const tools = readJson($('tools'), 'Tools');
    if (tools === null) return null;
    if (!Array.isArray(tools)) throw new Mistake('Tools: a list [...] is needed', $('tools'));
    return tools.map((tool) => tool?.function ? tool : { type: 'function', function: tool });
}

function readForm() {
    switch ($('format').value) {
    case 'json_object':
        return { response_format: { type: 'json_object' } };
    case 'json_schema': {
        const schema = readJson($('schema'), 'Schema');
        if (schema === null) throw new Mistake('Schema: it is empty', $('schema'));
        return { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } };
    }
    case 'regex':
        if (!$('regex').value) throw new Mistake('Regular expression: it is empty', $('regex'));
        return { structured_outputs: { regex: $('regex').value } };
    default:
        return {};
    }
}

// Fields of a request. A whole number that JavaScript would round is none: the form has a most for the seed.
// Throws a Mistake, whose field says where.
export function readParameters() {
    const body = readForm(), effort = $('effort').value;
    for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
        const field = $(name);
        if (!field.checkValidity()) {
            throw new Mistake(`${field.labels[0].textContent}: ${field.validationMessage}`, field);
        }
        if (field.value !== '') body[name] = Number(field.value);
    }
    body.thinking = { type: effort === 'none' ? 'disabled' : 'enabled' };
    if (effort !== 'none') body.reasoning_effort = effort;
    const tools = readTools();
    if (tools?.length) body.tools = tools;
    return body;
}

export const system = () => $('system').value;
export const key = () => $('key').value.trim();

function showParts() {
    $('schema-part').hidden = $('format').value !== 'json_schema';
    $('regex-part').hidden = $('format').value !== 'regex';
}

// JSON is looked at when one leaves it, and its mistakes are told beneath.
function check(field, note, words) {
    let wrong = '';
    try {
        readJson(field, 'This is not JSON');
    } catch (mistake) {
        wrong = mistake.message;
    }
    field.setAttribute('aria-invalid', String(wrong !== ''));
    note.textContent = wrong || words;
    note.classList.toggle('wrong', wrong !== '');
}

// ---- The panel ----

export function openSettings(field = $('system')) {
    $('settings').hidden = false;
    $('open-settings').setAttribute('aria-expanded', 'true');
    field.focus();
}

export function closeSettings() {
    $('settings').hidden = true;
    $('open-settings').setAttribute('aria-expanded', 'false');
    $('open-settings').focus();
}

export const settingsAreOpen = () => !$('settings').hidden;

export function startSettings() {
    const toolsWords = $('tools-note').textContent, schemaWords = $('schema-note').textContent;
    const checkAll = () => {
        check($('tools'), $('tools-note'), toolsWords);
        check($('schema'), $('schema-note'), schemaWords);
    };
    recall();
    showParts();
    checkAll();
    form().addEventListener('input', () => {
        keep();
        showParts();
    });
    form().addEventListener('change', checkAll);
    form().addEventListener('submit', (event) => event.preventDefault());
    form().addEventListener('reset', () => setTimeout(() => {
        keep();
        showParts();
        checkAll();
    }));
    $('open-settings').addEventListener('click', () =>
        settingsAreOpen() ? closeSettings() : openSettings());
    $('close-settings').addEventListener('click', closeSettings);
}
