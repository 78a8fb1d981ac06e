// The page: what happens when one writes, stops, edits, asks again.
import { $, copyText, say } from './dom.js';
import { ask, headers, Refusal } from './ask.js';
import { load, save, messages, newAnswer, openCalls } from './talk.js';
import { answerView, userView, speedText, plainText } from './view.js';
import { Mistake, readParameters, system, key, startSettings, openSettings, closeSettings,
    settingsAreOpen } from './settings.js';

let turns = load();
let running = null; // {abort} of the answer that is coming

// ---- Showing ----

const scroll = $('scroll');
const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };

// Each turn has one view as long as it lives, so that what is open, chosen or focused in it stays.
const views = new WeakMap();
function viewOf(turn) {
    if (!views.has(turn)) {
        views.set(turn, turn.role === 'user' ? userView(turn, { edit })
            : answerView(turn, { copy, again, result: giveResult }));
    }
    return views.get(turn);
}

// What a view must know beside its turn: whether it is the last, nothing is coming, or it is coming.
const stateOf = (turn) => ({ last: turn === turns.at(-1), idle: !running,
    running: running !== null && turn === turns.at(-1) });

function showAll(follow = true) {
    const nodes = turns.map((turn) => viewOf(turn).node);
    for (const old of [...$('messages').children]) if (!nodes.includes(old)) old.remove();
    $('messages').append(...nodes.filter((node) => !node.isConnected));
    for (const turn of turns) viewOf(turn).show(stateOf(turn));
    $('hello').hidden = turns.length > 0;
    $('send').hidden = running !== null;
    $('stop').hidden = running === null;
    if (follow) toEnd();
}

// Once a frame at most, however fast pieces come, and a fifth of the time at most, however long the
// answer has become.
let due = false;
function showLast() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
        const begun = performance.now(), follow = atEnd();
        if (running) {
            viewOf(turns.at(-1)).show(stateOf(turns.at(-1)));
            $('speed').textContent = speedText(turns.at(-1));
            if (follow) toEnd();
        }
        setTimeout(() => { due = false; }, 4 * (performance.now() - begun));
    });
}

function keepTurns() {
    if (!save(turns)) say('The browser has no room to keep this conversation.');
}

// ---- Asking ----

function explain(error) {
    if (error instanceof Refusal) {
        if (error.status === 401) openSettings($('key'));
        return error.message;
    }
    return 'The server cannot be reached: ' + error.message;
}

// Answers what the conversation ends in. Without anything running, and with its last turn no answer
// but one that has all its results.
async function answer() {
    let body;
    try {
        body = { ...readParameters(), messages: messages(turns, system()) };
    } catch (mistake) {
        if (!(mistake instanceof Mistake)) throw mistake;
        openSettings(mistake.field);
        turns.push({ ...newAnswer(), problem: mistake.message });
        showAll();
        return;
    }
    const turn = newAnswer();
    const abort = new AbortController();
    turns.push(turn);
    running = { abort };
    showAll();
    say('The answer is coming.');
    $('speed').textContent = '';
    try {
        await ask(body, key(), turn, showLast, abort.signal);
    } catch (error) {
        if (abort.signal.aborted) turn.stopped = true;
        else turn.problem = explain(error);
    }
    running = null;
    if (turns.at(-1) === turn) finish(turn);
    else showAll(); // a new conversation was begun meanwhile
}

function finish(turn) {
    const had = document.activeElement === $('stop');
    keepTurns();
    showAll(atEnd());
    $('speed').textContent = '';
    if (had) $('question').focus();
    if (turn.problem) return; // an alert says it
    const calls = turn.calls.map((call) => call.name).join(', ');
    say(turn.stopped ? 'Stopped.' : (turn.content ? 'Answer: ' + turn.content : 'The answer is there.') +
        (calls ? ` Called: ${calls}. Give the result.` : ''));
    if (calls) $('messages').querySelector('.call textarea')?.focus();
}

function stop() {
    running?.abort.abort();
}

// ---- What one does ----

function send(text) {
    if (running || !text.trim()) return;
    // Calls that are left without a result count as having given nothing.
    for (const call of openCalls(turns)) call.result = '';
    turns = withoutFailure(turns);
    turns.push({ role: 'user', content: text });
    keepTurns();
    answer();
}

// An answer that failed before it began is no part of the conversation.
function withoutFailure(all) {
    const last = all.at(-1);
    return last?.role === 'assistant' && last.problem && !last.content && !last.calls.length
        ? all.slice(0, -1) : all;
}

function edit(turn, text) {
    if (running) return;
    turns = [...turns.slice(0, turns.indexOf(turn)), { role: 'user', content: text }];
    keepTurns();
    $('question').focus();
    answer();
}

function again() {
    turns = turns.slice(0, -1);
    $('question').focus();
    answer();
}

function giveResult(call, text) {
    call.result = text;
    keepTurns();
    if (openCalls(turns).length > 0) {
        showAll();
        $('messages').querySelector('.call textarea').focus();
        return;
    }
    $('question').focus();
    answer();
}

async function copy(turn) {
    try {
        await copyText(plainText(turn));
        say('Copied.');
    } catch {
        say('The browser does not let this page copy.');
    }
}

function begin() {
    stop();
    turns = [];
    keepTurns();
    showAll();
    $('question').focus();
    say('A new conversation.');
}

// ---- Starting ----

function grow() {
    const field = $('question');
    field.style.height = 'auto';
    field.style.height = field.scrollHeight + 2 + 'px';
}

function startComposer() {
    const field = $('question');
    $('composer').addEventListener('submit', (event) => {
        event.preventDefault();
        if (running) return;
        const text = field.value;
        field.value = '';
        grow();
        send(text);
    });
    field.addEventListener('input', grow);
    field.addEventListener('keydown', (event) => {
        if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        $('composer').requestSubmit();
    });
    $('stop').addEventListener('click', stop);
    $('new').addEventListener('click', begin);
    addEventListener('pagehide', () => {
        if (!running) return;
        turns.at(-1).stopped = true;
        keepTurns();
    });
    document.addEventListener('keydown', (event) => {
        if (event.key !== 'Escape') return;
        if (running) stop();
        else if (settingsAreOpen()) closeSettings();
    });
}

async function showModel() {
    try {
        const response = await fetch('v1/models', { headers: headers(key()) });
        const { data } = await response.json();
        $('model').textContent = data ? data[0].id : '';
    } catch { /* the first question will say so */ }
}

startSettings();
startComposer();
showAll();
showModel();
