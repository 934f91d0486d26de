"use strict";
// Every group as a cell, in a column for each step or bin of steps. Ink is signal: groups that are all right are pale.

const MAP_WIDEST = 40; // pixels of a column
const MAP_CELLS = 16; // groups in a column that are still drawn one by one; more are shares of the column

// The colour of groups with so many right completions of `size`; size + 1: without accuracy.
function mapColour(right, size, ramp) {
    if (right > size) return ramp.unscored;
    if (right === 0) return ramp.wrong;
    if (right === size) return ramp.right;
    return ramp
        .mixed[Math.min(ramp.mixed.length - 1, Math.floor((right - 1) / Math.max(1, size - 1) * ramp.mixed.length))];
}

function mapRamp() {
    return {
        wrong: colour("orange2"),
        right: colour("grey3"),
        unscored: colour("grey2"),
        mixed: ["blue", "ramp2", "blue2", "ramp3", "blue3"].map(colour)
    };
}

// The first and the last step.
function mapEnds(map) {
    return [...new Set([map.first[0], map.step[map.step.length - 1]])].filter(isNumber);
}

function mapLegend(size) {
    const item = (name, text) => el("span", {}, el("i", {class: "swatch " + name}), text);
    return el("span", {class: "legend"}, item("wrong", "all wrong"), size > 1 ? item("few", "1 right") : null,
        size > 2 ? item("most", `${size - 1} right`) : null, item("all", "all right"));
}

// A map of an answer of /api/map. open(index of the column, right completions, number among these) is called at a
// click.
function mapDraw(map, {open}) {
    const canvas =
        el("canvas", {tabindex: "0", role: "img", "aria-label": "every group by step; arrow keys move, Enter opens"});
    const totals = map.counts.map(row => row.reduce((a, b) => a + b, 0)), most = Math.max(1, maxOf(totals) || 1);
    const single = most <= MAP_CELLS,
          cellHeight = single ? Math.max(6, Math.min(18, Math.floor(72 / most))) : 72 / most,
          height = Math.round(cellHeight * most) + 4;
    let chosen = null, width = 0;

    // The cells of a column from the bottom: all wrong first. [right completions, how many groups]
    const pile = i => map.counts[i].map((count, right) => [right, count]).filter(([, count]) => count > 0);
    const columnWidth = () => Math.min(MAP_WIDEST, (width - 4) / Math.max(1, map.step.length));
    const draw = () => {
        width = canvasWidth(canvas);
        if (!width) return;
        const ramp = mapRamp(), step = columnWidth(), gap = step > 4 ? 1 : 0;
        canvasDraw(canvas, width, height, context => {
            map.step.forEach((_, i) => {
                let level = 0;
                for (const [right, count] of pile(i)) {
                    context.fillStyle = mapColour(right, map.size, ramp);
                    for (let k = 0; k < (single ? count : 1); k++) {
                        const tall = single ? cellHeight : count * cellHeight;
                        context.fillRect(
                            2 + i * step, height - 2 - (level + tall), step - gap, tall - (single ? 1 : 0));
                        level += tall;
                    }
                }
            });
            if (!chosen) return;
            context.strokeStyle = colour("ink");
            context.lineWidth = 2;
            if (single)
                context.strokeRect(2 + chosen.i * step, height - 2 - (chosen.level + 1) * cellHeight,
                    Math.max(3, step - gap), cellHeight - 1);
            else
                context.strokeRect(2 + chosen.i * step, 2, Math.max(3, step - gap), height - 4);
        });
    };
    const cell = (i, level) => {
        let below = 0;
        for (const [right, count] of pile(i)) {
            if (level < below + count) return {right, index: Math.floor(level - below)};
            below += count;
        }
        return null;
    };
    const at = event => {
        const box = canvas.getBoundingClientRect(), i = Math.floor((event.clientX - box.left - 2) / columnWidth());
        if (i < 0 || i >= map.step.length) return null;
        const level = (box.bottom - 2 - event.clientY) / cellHeight, found = cell(i, level);
        return found && {i, level: Math.floor(level), ...found};
    };
    const say = place => {
        const steps = map.first[place.i] === map.step[place.i] ? `step ${map.step[place.i]}`
                                                               : `steps ${map.first[place.i]} to ${map.step[place.i]}`;
        return `${steps}, ${place.right > map.size ? "without accuracy" : `${place.right} of ${map.size} right`}`;
    };
    canvas.addEventListener("pointermove", event => {
        const place = at(event);
        if (place)
            tipShow(say(place) + "\n" + plural(totals[place.i], "group"), event.clientX, event.clientY);
        else
            tipHide();
    });
    canvas.addEventListener("pointerleave", tipHide);
    canvas.addEventListener("click", event => {
        const place = at(event);
        if (place) open(place.i, place.right, single ? place.index : null);
    });
    canvas.addEventListener("keydown", event => {
        const by = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}[event.key];
        if (event.key === "Enter" && chosen) open(chosen.i, chosen.right, single ? chosen.index : null);
        if (!by || !map.step.length) return;
        event.preventDefault();
        const i = Math.max(0, Math.min(map.step.length - 1, (chosen ? chosen.i : 0) + by[0]));
        const level = Math.max(0, Math.min(Math.max(0, totals[i] - 1), (chosen ? chosen.level : 0) + by[1]));
        chosen = {i, level, ...(cell(i, level) || {right: 0, index: 0})};
        draw();
        const box = canvas.getBoundingClientRect();
        tipShow(say(chosen), box.left + i * columnWidth(), box.bottom - 10);
    });
    canvas.addEventListener("blur", () => {
        chosen = null;
        draw();
        tipHide();
    });
    return {
        element: el("div", {class: "map"}, canvas,
            el("div", {class: "ends", css: {"max-width": `${map.step.length * MAP_WIDEST + 4}px`}},
                mapEnds(map).map(step => el("span", {}, fixed(step)))),
            map.step.length ? null : el("p", {class: "empty"}, "No group yet.")),
        draw
    };
}
