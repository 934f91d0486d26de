"use strict";
// Elements, and text that is safe to look at. Text enters the page through textContent alone.

// Characters that control, hide or turn text: they are shown as \u{202e}.
const DOM_UNSEEN =
    new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e" +
            "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]|[\\u{e0000}-\\u{e007f}]|\\p{Cs}",
        "gu");

function domFill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name === "on")
            for (const [kind, handler] of Object.entries(value)) element.addEventListener(kind, handler);
        else if (name === "css")
            for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
        else
            element.setAttribute(name, value === true ? "" : String(value));
    }
    domAppend(element, children);
    return element;
}

// Appends nodes, strings, numbers and arrays of these; null is nothing.
function domAppend(element, children) {
    for (const child of children) {
        if (child === null || child === undefined || child === false) continue;
        if (Array.isArray(child))
            domAppend(element, child);
        else
            element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
}

// An element: el("p", {class: "note", on: {click: f}, css: {width: "9px"}}, "text", other).
function el(name, attributes, ...children) {
    return domFill(document.createElement(name), attributes, children);
}

// An element of a drawing. The name space is that of the empty drawing in index.html.
function svg(name, attributes, ...children) {
    const space = document.getElementById("drawing").namespaceURI;
    return domFill(document.createElementNS(space, name), attributes, children);
}

function domReplace(element, ...children) {
    element.replaceChildren();
    domAppend(element, children);
}

// The text as a string in which every character can be seen.
function visible(text) {
    return String(text).replace(DOM_UNSEEN, c => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// The length of the beginning of a text with at most `most` UTF-16 units that has no half of a character at its end.
function wholeLength(text, most) {
    if (most >= text.length) return text.length;
    const code = most > 0 ? text.charCodeAt(most - 1) : 0;
    return code >= 0xd800 && code < 0xdc00 ? most - 1 : most;
}

// The text as nodes: what cannot be seen stands in elements of its own. Of more than `most` UTF-16 units the first
// ones.
function textNodes(text, most = Infinity) {
    const whole = String(text), shown = whole.slice(0, wholeLength(whole, most)), nodes = [];
    let at = 0;
    for (const match of shown.matchAll(DOM_UNSEEN)) {
        if (match.index > at) nodes.push(document.createTextNode(shown.slice(at, match.index)));
        nodes.push(el("span", {class: "unseen"}, visible(match[0])));
        at = match.index + match[0].length;
    }
    if (at < shown.length) nodes.push(document.createTextNode(shown.slice(at)));
    if (shown !== whole) nodes.push(document.createTextNode("…"));
    return nodes;
}

// A text in which a path may be broken behind each slash.
function pathNodes(text, most) {
    return String(text).slice(0, most).split(/(?<=\/)/).map((part, i) => [i ? el("wbr", {}) : null, textNodes(part)]);
}

// A heading of a section: its title, a note, and what stands at the right end.
function heading(title, note, ...right) {
    return el("h2", {}, title, note ? el("small", {}, note) : null,
        right.length ? el("span", {class: "right"}, right) : null);
}

// The small signs: a shape beside each word, so that colour is never alone.
function sign(kind) {
    const shapes = {
        ok: "M1.5 6l3 3 5-7",
        warn: "M5.5 1l5 9h-10z",
        running: "M2 1l8 4.5-8 4.5z",
        over: "M1.5 1.5h8v8h-8z",
        off: "M1 5.5h9",
        restart: "M9 3.5a4 4 0 1 0 .5 3M9.5 1v3h-3",
    };
    const line = kind === "ok" || kind === "off" || kind === "restart";
    return svg("svg", {class: "sign" + (line ? " stroke" : ""), viewBox: "0 0 11 11", "aria-hidden": "true"},
        svg("path", {d: shapes[kind]}));
}

// ---- the tip beside the pointer ----

function tipShow(lines, x, y) {
    const tip = document.getElementById("tip");
    tip.textContent = lines;
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.setProperty("left", Math.max(4, Math.min(x + 12, innerWidth - width - 8)) + "px");
    tip.style.setProperty("top", (y + 16 + height > innerHeight ? Math.max(4, y - height - 10) : y + 16) + "px");
}

function tipHide() {
    document.getElementById("tip").hidden = true;
}

// A colour of the present theme.
function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// The CSS pixels that a canvas is wide: on paper those of a page, because there is no time to measure it.
function canvasWidth(canvas) {
    return !canvas.parentElement ? 0 : state.printing ? 720 : canvas.parentElement.clientWidth;
}

// A canvas of `width` x `height` CSS pixels, drawn by draw(context) at the device's resolution.
function canvasDraw(canvas, width, height, draw) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.setProperty("--drawn", `${width} / ${height}`);
    canvas.style.setProperty("height", height + "px");
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context);
}
