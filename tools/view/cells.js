"use strict";
// A cell for each completion: filled: right with bonus; hollow: right; orange: wrong; a stroke: form broken.

const MARK_RIGHT = 1, MARK_FORMED = 2, MARK_BONUS = 4, MARK_CONTRADICTS = 8;

function markClass(mark, has) {
    if (!isNumber(mark)) return "cell none";
    const kind = mark & MARK_RIGHT ? (mark & MARK_BONUS || !has.bonus ? "filled" : "plain") : "wrong";
    return `cell ${kind}${mark & MARK_FORMED || !has.format ? "" : " broken"}`;
}

function markWords(mark, has) {
    if (!isNumber(mark)) return "not scored";
    return (mark & MARK_RIGHT ? "right" : "wrong") + (mark & MARK_BONUS ? ", with bonus" : "") +
        (mark & MARK_FORMED || !has.format ? "" : ", form broken") +
        (mark & MARK_CONTRADICTS ? ", thinking contradicts" : "");
}

// `count`: completions in all, of which `marks` may be the first ones. `has`: whether there are a bonus and a format.
function cellsDraw(marks, count, has = state.run.has) {
    const right = marks.filter(mark => mark & MARK_RIGHT).length;
    return el("span", {
        class: "cells",
        role: "img",
        "aria-label": `${right} right of ${marks.length}`,
        title: marks.map((m, i) => `#${i + 1} ${markWords(m, has)}`).join("\n")
    },
        marks.map(mark => el("i", {class: markClass(mark, has)})),
        count > marks.length ? el("span", {class: "more"}, `+${count - marks.length}`) : null);
}

function cellsLegend(has = state.run.has) {
    const item = (name, text) => el("span", {}, el("i", {class: "cell " + name}), text);
    return el("span", {class: "legend"}, item("filled", has.bonus ? "right, with bonus" : "right"),
        has.bonus ? item("plain", "right, no bonus") : null, item("wrong", "wrong"),
        has.format ? item("wrong broken", "form broken") : null);
}
