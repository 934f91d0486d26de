"use strict";
// Curves over the steps, drawn as SVG. All curves of a page share one cursor.

const chartCursor = {
    listeners: [],
    step: null
};

function chartCursorSet(step) {
    chartCursor.step = step;
    for (const listener of chartCursor.listeners) listener(step);
}

// About `count` round numbers from low to high, at least two: one alone tells no scale.
function chartTicks(low, high, count) {
    const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
    const sizes = [0.2, 0.5, 1, 2, 5, 10].map(m => m * power);
    let at = Math.max(2, sizes.findIndex(s => s >= rough)), ticks = [];
    for (; at >= 0 && ticks.length < 2; at--) ticks = chartMultiples(low, high, sizes[at]);
    return {ticks, digits: Math.max(0, -Math.floor(Math.log10(sizes[at + 1]) + 1e-9))};
}

// The multiples of `size` from low to high.
function chartMultiples(low, high, size) {
    const multiples = [];
    for (let i = Math.ceil(low / size - 1e-9); i * size <= high + size * 1e-9; i++) multiples.push(i * size);
    return multiples;
}

// The path of a line; where a value is absent there is a gap.
function chartLine(xs, ys) {
    let path = "", open = false;
    ys.forEach((y, i) => {
        if (isNumber(y))
            path +=
                `${open ? "L" : "M"}${xs[i].toFixed(1)} ${y.toFixed(1)}${open || isNumber(ys[i + 1]) ? "" : "h0.1"}`;
        open = isNumber(y);
    });
    return path;
}

// The closed path between two lines, a piece for each stretch without gaps.
function chartArea(xs, lows, highs) {
    let path = "", first = null;
    for (let i = 0; i <= xs.length; i++) {
        const there = i < xs.length && isNumber(lows[i]) && isNumber(highs[i]);
        if (there && first === null) first = i;
        if (there || first === null) continue;
        const span = Array.from({length: i - first}, (_, k) => first + k);
        path += "M" + span.map(k => `${xs[k].toFixed(1)} ${highs[k].toFixed(1)}`).join("L") + "L" +
            span.reverse().map(k => `${xs[k].toFixed(1)} ${lows[k].toFixed(1)}`).join("L") + "Z";
        first = null;
    }
    return path;
}

// A curve. chart: {title, note, step, first, mean, min, max (of bins), spread (of a band around the mean), percent,
// low, high, marks: [{step, text}] of ▲, second: {name, step, mean} of another run, name, onSpan(first, last) after a
// drag}.
function chartCurve(chart) {
    const scale = chartScale(chart), times = value => isNumber(value) ? value * scale.factor : null;
    const mean = chart.mean.map(times), width = smoothingWidth(mean.length), line = smoothed(mean, width);
    const last = () => meanOf(mean.slice(-tenthOf(mean)));
    const number = el("em", {});
    const figure = el("figure",
        {class: "chart", tabindex: "0", "aria-label": `${chart.title}${chart.note ? ", " + chart.note : ""}`},
        el("figcaption", {}, el("b", {title: chart.title}, chart.title),
            scale.note ? el("span", {class: "scale"}, scale.note) : null,
            el("span", {title: chart.note}, chart.note || ""), number));
    const show = (value, other) => number.textContent =
        chart.second ? `${scale.text(value)} / ${scale.text(other)}` : scale.text(value);
    const other = chart.second ? chart.second.mean.map(times) : [];
    const rest = () => show(last(), chart.second ? meanOf(other.slice(-tenthOf(other))) : null);
    rest();

    const W = 210, H = 84, right = 6, top = 7, bottom = 16;
    const spread = chart.spread ? chart.spread.map(times) : null,
          steps = chart.second ? [...chart.step, ...chart.second.step] : chart.step;
    const lowest =
        Math.min(...(chart.first || chart.step).slice(0, 1), ...(chart.second ? chart.second.step.slice(0, 1) : []));
    const highest = maxOf(steps);
    const all = [
        ...mean, ...other, ...(chart.min || []).map(times), ...(chart.max || []).map(times),
        ...(spread ? line.flatMap((v, i) => isNumber(v) && isNumber(spread[i]) ? [v - spread[i], v + spread[i]] : [])
                   : [])
    ];
    let low = chart.low ?? minOf(all), high = chart.high ?? maxOf(all);
    if (!(high - low > 1e-12)) low = low >= 0 ? Math.max(0, low - 0.5) : low - 0.5, high += 0.5;
    const margin = (high - low) * 0.04,
          y = v => top + (H - top - bottom) * (1 - (v - low + margin) / (high - low + 2 * margin));
    const {ticks, digits} = chartTicks(low, high, 3);
    const labels = ticks.map(tick => chart.percent ? fixed(tick * 100) + "%" : fixed(tick, digits));
    const left = Math.max(34, 8 + 5.9 * Math.max(...labels.map(label => label.length)));
    const x = step => left + (W - left - right) * (highest > lowest ? (step - lowest) / (highest - lowest) : 0.5);
    const xs = chart.step.map(x);
    const drawing = svg("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-hidden": "true"});
    ticks.forEach((tick, i) => drawing.append(
        svg("line", {class: "grid", x1: left, x2: W - right, y1: y(tick), y2: y(tick)}),
        svg("text", {class: "axis", x: left - 4, y: y(tick) + 3.5, "text-anchor": "end"}, labels[i])));
    if (highest > lowest)
        drawing.append(svg("text", {class: "axis", x: left, y: H - 4}, fixed(lowest)),
            svg("text", {class: "axis", x: W - right, y: H - 4, "text-anchor": "end"}, fixed(highest)));
    else
        drawing.append(svg("text", {class: "axis", x: x(lowest), y: H - 4, "text-anchor": "middle"}, fixed(lowest)));
    if (spread)
        drawing.append(svg("path", {
            class: "band",
            d: chartArea(xs, line.map((v, i) => isNumber(v) && isNumber(spread[i]) ? y(v - spread[i]) : null),
                line.map((v, i) => isNumber(v) && isNumber(spread[i]) ? y(v + spread[i]) : null))
        }));
    const extremes = column => column.map(v => isNumber(v) ? y(v * scale.factor) : null);
    if (chart.min && chart.first && chart.first.some((f, i) => f !== chart.step[i]))
        drawing.append(svg("path", {class: "band", d: chartArea(xs, extremes(chart.min), extremes(chart.max))}));
    const place = v => isNumber(v) ? y(v) : null;
    if (!chart.second) drawing.append(svg("path", {class: "thin", d: chartLine(xs, mean.map(place))}));
    drawing.append(svg("path", {class: "thick", d: chartLine(xs, line.map(place))}));
    if (line.filter(isNumber).length === 1) // which no line shows
        line.forEach(
            (v, i) => isNumber(v) && drawing.append(svg("circle", {class: "point", cx: xs[i], cy: y(v), r: 2.6})));
    if (chart.second)
        drawing.append(svg("path", {
            class: "thick other",
            d: chartLine(chart.second.step.map(x), smoothed(other, smoothingWidth(other.length)).map(place))
        }));
    for (const mark of chart.marks || [])
        if (mark.step >= lowest && mark.step <= highest)
            drawing.append(svg("path", {class: "mark", d: `M${x(mark.step)} ${H - bottom + 1}l-3.5 6h7z`},
                svg("title", {}, visible(mark.text))));
    const hair = svg("line", {class: "hair", y1: top - 4, y2: H - bottom}), dot = svg("circle", {class: "dot", r: 2.6});
    const selection = svg("rect", {class: "selection", y: top - 4, height: H - top - bottom + 4});
    drawing.append(selection, hair, dot);
    figure.append(drawing);

    const nearest = (list, step) =>
        list.reduce((best, s, i) => Math.abs(s - step) < Math.abs(list[best] - step) ? i : best, 0);
    const listener = step => {
        hair.classList.toggle("on", step !== null);
        dot.classList.toggle("on", step !== null);
        if (step === null || !chart.step.length) return rest();
        const i = nearest(chart.step, step);
        show(mean[i], chart.second && other.length ? other[nearest(chart.second.step, step)] : null);
        hair.setAttribute("x1", xs[i]);
        hair.setAttribute("x2", xs[i]);
        dot.classList.toggle("on", isNumber(mean[i]));
        if (isNumber(mean[i])) domFill(dot, {cx: xs[i], cy: y(mean[i])}, []);
    };
    chartCursor.listeners.push(listener);
    chartPointer(chart, figure, drawing, selection, {W, left, right, lowest, highest, nearest});
    return figure;
}

// Moves the cursor with the pointer and the arrow keys, and selects steps by a drag.
function chartPointer(chart, figure, drawing, selection, {W, left, right, lowest, highest, nearest}) {
    let began = null;
    const stepAt = event => {
        const box = drawing.getBoundingClientRect();
        const share = ((event.clientX - box.left) / box.width * W - left) / (W - left - right);
        return lowest + Math.max(0, Math.min(1, share)) * (highest - lowest);
    };
    const place = step => left + (W - left - right) * (highest > lowest ? (step - lowest) / (highest - lowest) : 0.5);
    drawing.addEventListener("pointermove", event => {
        const step = stepAt(event);
        chartCursorSet(chart.step[nearest(chart.step, step)] ?? null);
        if (began !== null)
            domFill(
                selection, {x: Math.min(place(began), place(step)), width: Math.abs(place(step) - place(began))}, []);
    });
    drawing.addEventListener("pointerleave", () => chartCursorSet(null));
    if (chart.onSpan) {
        drawing.addEventListener("pointerdown", event => {
            if (event.button !== 0 || event.pointerType === "touch") return;
            began = stepAt(event);
            drawing.setPointerCapture(event.pointerId);
            event.preventDefault();
        });
        drawing.addEventListener("pointerup", event => {
            if (began === null) return;
            const ended = stepAt(event), first = Math.round(Math.min(began, ended)),
                  last = Math.round(Math.max(began, ended));
            began = null;
            selection.setAttribute("width", 0);
            if (last - first >= 2 && Math.abs(place(ended) - place(first)) > 0) chart.onSpan(first, last);
        });
    }
    figure.addEventListener("keydown", event => {
        const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
        if (!by || !chart.step.length) return;
        const now =
            chartCursor.step === null ? chart.step.length - 1 - (by > 0) : nearest(chart.step, chartCursor.step);
        chartCursorSet(chart.step[Math.max(0, Math.min(chart.step.length - 1, now + by))]);
        event.preventDefault();
    });
    figure.addEventListener("blur", () => chartCursorSet(null));
}

// How the numbers of a curve are written: as shares, or with a power of ten in front where they are small.
function chartScale(chart) {
    if (chart.percent) return {factor: 1, note: "", text: value => percent(value)};
    const size =
        maxOf([...chart.mean, ...(chart.second ? chart.second.mean : [])].map(v => isNumber(v) ? Math.abs(v) : null));
    if (isNumber(size) && size > 0 && size < 0.001) {
        const power = Math.floor(Math.log10(size));
        return {factor: 10 ** -power, note: `× 1e${power}`, text: value => fixed(value, 2)};
    }
    const digits = size >= 0.5 && size < 10 ? 2 : Math.min(4, digitsFor(size, 3));
    return {
        factor: 1,
        note: "",
        text: value => isNumber(value) && value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits ? significant(value, 1)
                                                                                               : fixed(value, digits)
    };
}

// A small curve of shares, 0 to 1, without axes.
function chartSpark(values) {
    const W = 100, H = 18, xs = values.map((_, i) => values.length > 1 ? i * W / (values.length - 1) : 0);
    const y = v => isNumber(v) ? H - 1 - Math.min(1, v) * (H - 2) : null, ys = values.map(y);
    return svg("svg", {class: "spark", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", "aria-hidden": "true"},
        svg("path", {class: "area", d: chartArea(xs, ys.map(v => v === null ? null : H), ys)}),
        svg("path", {class: "thick", d: chartLine(xs, ys), "vector-effect": "non-scaling-stroke"}));
}
