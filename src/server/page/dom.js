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

// For those who hear the page.
export function say(text) {
    $('said').textContent = text;
}
