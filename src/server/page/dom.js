// Elements, made of names and texts alone: nothing here takes markup.

export const $ = (id) => document.getElementById(id);

// el('p', { class: 'note', onclick: f }, 'text', node, null): a function is a listener, true and
// false are attributes that are there or not.
export function el(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
        if (typeof value === 'function') node.addEventListener(key.slice(2), value);
        else if (typeof value === 'boolean') node.toggleAttribute(key, value);
        else if (value !== null && value !== undefined) node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
}

export const button = (label, onclick, attributes = {}) =>
    el('button', { type: 'button', class: 'small', onclick, ...attributes }, label);

// To the clipboard; where the page came without TLS from another machine browsers give none, and a selection is copied.
export async function copyText(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = el('textarea', { class: 'off', 'aria-hidden': 'true' });
    const before = document.activeElement;
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    before?.focus();
    if (!done) throw new Error('the browser does not allow it');
}

// A button that copies a text and says so.
export function copyButton(text, what) {
    const node = button('Copy', async () => {
        try {
            await copyText(text);
            node.textContent = 'Copied';
            say(`${what} copied`);
        } catch (error) {
            node.textContent = 'Not copied';
            say(`${what} not copied: ${error.message}`);
        }
        setTimeout(() => { node.textContent = 'Copy'; }, 2000);
    }, { 'aria-label': `Copy ${what.toLowerCase()}` });
    return node;
}

// For those who hear the page.
export function say(text) {
    $('said').textContent = text;
}
