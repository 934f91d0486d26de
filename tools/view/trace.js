"use strict";
// When which stage had which group, and where the time of a group goes.

const TRACE_LANE = 11, TRACE_TOP = 58, TRACE_AXIS = 18, TRACE_LANES = 8;
const TRACE_FONT = "11px sans-serif";

function traceColours() {
    return Object.fromEntries(
        ["ink", "soft", "faint", "line", "hair", "blue", "blue2", "blue3", "orange2", "panel", "grey3"].map(
            name => [name, colour(name)]));
}

// The bars with a lane each. A lane is a replica of a stage; where the run does not keep it, or a replica has several
// groups at a time, bars that overlap get further lanes. Returns {bars, stages: [{name, lanes, top}], height}.
function traceLanes(answer) {
    const bars = answer.bars.number
                     .map((number, i) => ({
                         number,
                         stage: answer.bars.stage[i],
                         replica: answer.bars.replica[i],
                         from: answer.bars.from[i],
                         to: answer.bars.to[i]
                     }))
                     .sort((x, y) => x.from - y.from);
    let top = TRACE_TOP;
    const stages = answer.stages.name.map((name, stage) => {
        const mine = bars.filter(bar => bar.stage === stage),
              replicas = [...new Set(mine.map(bar => bar.replica))].sort((x, y) => x - y);
        let first = 0;
        for (const replica of replicas) {
            const ends = [];
            for (const bar of mine.filter(one => one.replica === replica)) {
                let lane = ends.findIndex(end => end <= bar.from);
                if (lane < 0) lane = ends.length < TRACE_LANES ? ends.length : ends.indexOf(Math.min(...ends));
                ends[lane] = Math.max(bar.to, ends[lane] || 0);
                bar.lane = first + lane;
            }
            first += Math.max(1, ends.length);
        }
        const lanes = Math.max(1, first), at = top;
        top += lanes * TRACE_LANE + 8;
        return {name, lanes, top: at, replicas: traceReplicas(name)};
    });
    return {bars, stages, height: top + TRACE_AXIS};
}

// How many replicas a stage has.
function traceReplicas(name) {
    const stage = state.run.stages.find(s => s.name === name);
    return stage ? stage.replicas.length : 1;
}

function traceLabel(stage) {
    const name = visible(stage.name);
    return (name.length > 14 ? name.slice(0, 13) + "…" : name) + (stage.replicas > 1 ? ` × ${stage.replicas}` : "");
}

// The ticks of a time axis from low to high, seconds since the start: [[time, text]].
function traceTicks(low, high, count) {
    const pad = n => String(n).padStart(2, "0"), rough = (high - low) / Math.max(1, count);
    if (rough <= 0.5 || high < 120) {
        const {ticks, digits} = chartTicks(low, high, count);
        const clock = tick => { // minutes and seconds with their decimals
            const rest = (tick % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
            return `${Math.floor(tick / 3600) ? Math.floor(tick / 3600) + ":" : ""}${
                tick >= 3600 ? pad(Math.floor(tick / 60) % 60) : Math.floor(tick / 60)}:${rest}`;
        };
        return ticks.map(tick => [tick, high < 120 ? `${fixed(tick, digits)} s` : clock(tick)]);
    }
    const day = 86400, sizes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
    const size = sizes.find(s => s >= rough) || Math.ceil(rough / day) * day;
    const text = tick => high < 2 * day ? duration(tick) : size >= day || tick % day === 0
        ? `${Math.round(tick / day)} d`
        : `${Math.floor(tick / day)} d ${Math.floor(tick % day / 3600)}:${pad(Math.floor(tick % 3600 / 60))}`;
    return chartMultiples(low, high, size).map(tick => [tick, tick === 0 ? "0" : tick < 60 ? `${tick} s` : text(tick)]);
}

// The canvas: on top the whole run with the span, below the span with its lanes.
function traceCanvas(whole, answer, live, {setSpan, choose}) {
    const canvas = el("canvas", {
        tabindex: "0",
        role: "img",
        "aria-label": "timeline: w closer, s wider, a left, d right, 0 all; ← → choose a group"
    });
    const laid = answer.bars ? traceLanes(answer) : {
        bars: [],
        stages: answer.stages.name.map(
            (name, i) => ({name, lanes: 2, top: TRACE_TOP + i * 30, replicas: traceReplicas(name)})),
        height: TRACE_TOP + answer.stages.name.length * 30 + TRACE_AXIS
    };
    const steps =
        new Map(answer.groups ? answer.groups.number.map((number, i) => [number, answer.groups.step[i]]) : []);
    const events = live.events.filter(e => ["restarted", "disconnected", "quarantined"].includes(e.kind));
    let width = 0, leftEdge = 0, chosen = null, selecting = null;
    const inner = () => Math.max(1, width - leftEdge - 6);
    const x = time => leftEdge + (time - answer.from) / Math.max(1e-9, answer.to - answer.from) * inner();
    const overviewX = time => leftEdge + (time - whole.start) / Math.max(1e-9, whole.end - whole.start) * inner();
    const timeAt = px => answer.from + (px - leftEdge) / inner() * (answer.to - answer.from);
    const wholeAt = px => whole.start + (px - leftEdge) / inner() * (whole.end - whole.start);

    const drawWhole = (context, c) => {
        const rows = whole.stages.name.length, tall = Math.max(2, Math.floor(42 / Math.max(1, rows)));
        whole.busy.share.forEach((pieces, row) => pieces.forEach((share, i) => {
            const time = whole.busy.time[i];
            if (!isNumber(share) || share <= 0.01) return;
            context.globalAlpha = 0.2 + 0.8 * Math.min(1, share);
            context.fillStyle = c.blue2;
            context.fillRect(overviewX(time), 5 + row * tall,
                Math.max(1, overviewX(time + whole.busy.width) - overviewX(time)), tall - (tall > 3 ? 1 : 0));
        }));
        context.globalAlpha = 1;
        context.fillStyle = c.orange2;
        for (const event of events)
            if (event.time >= whole.start && event.time <= whole.end)
                context.fillRect(overviewX(event.time), 3, 1.5, 46);
        context.fillStyle = c.soft;
        context.fillText("whole run", 6, 28);
        context.strokeStyle = c.ink;
        context.lineWidth = 1.2;
        context.strokeRect(overviewX(answer.from), 2.5, Math.max(3, overviewX(answer.to) - overviewX(answer.from)), 48);
    };
    const drawRows = (context, c) => {
        for (const stage of laid.stages) {
            context.fillStyle = c.hair;
            context.fillRect(0, stage.top - 4, width, 1);
            context.fillStyle = c.soft;
            context.fillText(traceLabel(stage), 6, stage.top + 9);
        }
        context.save();
        context.beginPath();
        context.rect(leftEdge, 0, width - leftEdge, laid.height);
        context.clip();
        if (!answer.bars)
            answer.busy.share.forEach((pieces, row) => pieces.forEach((share, i) => {
                const time = answer.busy.time[i];
                if (!isNumber(share) || share <= 0) return;
                const tall = Math.max(1, share * 20);
                context.fillStyle = c.blue2;
                context.fillRect(x(time), laid.stages[row].top + 21 - tall,
                    Math.max(1, x(time + answer.busy.width) - x(time)), tall);
            }));
        let filled = null;
        for (const bar of laid.bars) {
            const left = x(bar.from), wide = Math.max(1.5, x(bar.to) - left),
                  top = laid.stages[bar.stage].top + bar.lane * TRACE_LANE, step = steps.get(bar.number);
            const mine = chosen !== null && bar.number === chosen;
            const shade = mine ? c.ink : (step ?? bar.number) % 2 ? c.blue2 : c.blue3;
            if (left > width || left + wide < leftEdge) continue;
            if (shade !== filled) context.fillStyle = filled = shade;
            context.fillRect(left, top, wide, TRACE_LANE - 2);
            if (wide > 24 && isNumber(step)) {
                context.fillStyle = mine                                ? c.panel
                    : document.documentElement.dataset.theme === "dark" ? c.ink
                                                                        : (step % 2 ? "#0b1014" : c.ink);
                filled = null;
                context.font = "9px sans-serif";
                context.fillText(String(step), Math.max(left, leftEdge) + 2, top + 8);
                context.font = TRACE_FONT;
            }
        }
        const way =
            chosen === null ? [] : laid.bars.filter(bar => bar.number === chosen).sort((p, q) => p.from - q.from);
        context.strokeStyle = c.ink;
        context.lineWidth = 1.2;
        context.beginPath();
        way.forEach((bar, i) => {
            const y = laid.stages[bar.stage].top + bar.lane * TRACE_LANE + 4.5;
            if (i) context.lineTo(x(bar.from), y);
            context.moveTo(x(bar.to), y);
        });
        context.stroke();
        context.fillStyle = c.orange2;
        for (const event of events) {
            const row =
                laid.stages.find(s => event.name && (event.name === s.name || event.name.startsWith(s.name + "-")));
            if (!row || event.time < answer.from || event.time > answer.to) continue;
            const left = x(event.time);
            context.fillRect(left - 0.6, row.top - 2, 1.2, row.lanes * TRACE_LANE + 2);
            context.beginPath();
            context.moveTo(left - 4, row.top - 5);
            context.lineTo(left + 4, row.top - 5);
            context.lineTo(left, row.top + 2);
            context.fill();
        }
        if (selecting) {
            context.globalAlpha = 0.25;
            context.fillStyle = c.blue2;
            context.fillRect(
                Math.min(...selecting), TRACE_TOP - 4, Math.abs(selecting[1] - selecting[0]), laid.height - TRACE_TOP);
            context.globalAlpha = 1;
        }
        context.restore();
    };
    const drawAxis = (context, c) => {
        const low = answer.from - whole.start, high = answer.to - whole.start,
              ticks = traceTicks(low, high, Math.max(2, width / (width < 500 ? 90 : 130)));
        context.textAlign = "center";
        for (const [tick, text] of ticks) {
            const left = x(whole.start + tick);
            if (left < leftEdge || left > width) continue;
            context.fillStyle = c.hair;
            context.fillRect(left, TRACE_TOP - 4, 1, laid.height - TRACE_TOP - TRACE_AXIS + 4);
            context.fillStyle = c.soft;
            context.fillText(text, Math.min(left, width - context.measureText(text).width / 2 - 3), laid.height - 6);
        }
        context.textAlign = "left";
    };
    const draw = () => {
        width = canvasWidth(canvas);
        if (!width) return;
        canvasDraw(canvas, width, laid.height, context => {
            const c = traceColours();
            context.font = TRACE_FONT;
            const labels = ["whole run", ...laid.stages.map(traceLabel)].map(text => context.measureText(text).width);
            leftEdge = Math.ceil(Math.max(...labels)) + 16;
            drawAxis(context, c);
            drawWhole(context, c);
            drawRows(context, c);
        });
    };
    const barAt = (px, py) => {
        let best = null;
        for (const bar of laid.bars) {
            const top = laid.stages[bar.stage].top + bar.lane * TRACE_LANE;
            if (py < top - 1 || py > top + TRACE_LANE - 1) continue;
            const away = Math.max(0, x(bar.from) - px, px - x(bar.to));
            if (away < 4 && (best === null || away < best.away)) best = {bar, away};
        }
        return best && best.bar;
    };
    const select = number => {
        chosen = number;
        choose(number, laid.bars.filter(bar => bar.number === number).sort((p, q) => p.from - q.from));
        draw();
    };
    tracePointer(canvas, {
        barAt,
        timeAt,
        wholeAt,
        select,
        setSpan,
        answer,
        whole,
        draw,
        steps,
        mark: range => selecting = range,
        events,
        x
    });
    canvas.addEventListener("keydown", event => {
        const by = {ArrowLeft: -1, ArrowRight: 1}[event.key], numbers = answer.groups ? answer.groups.number : [];
        if (!by || !numbers.length) return;
        const at = numbers.indexOf(chosen);
        select(numbers[Math.max(0, Math.min(numbers.length - 1, at < 0 ? Math.floor(numbers.length / 2) : at + by))]);
        event.preventDefault();
    });
    return {element: el("div", {class: "trace"}, canvas), draw, select};
}

function tracePointer(canvas, t) {
    let began = null;
    const place = event => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointermove", event => {
        const [px, py] = place(event);
        if (began) {
            if (!began.above) {
                t.mark([began.px, px]);
                t.draw();
            }
            return;
        }
        const bar = t.barAt(px, py), happened = t.events.find(e => Math.abs(t.x(e.time) - px) < 4);
        if (bar)
            tipShow(`${visible(t.answer.stages.name[bar.stage])}: group ${bar.number}${
                        isNumber(t.steps.get(bar.number)) ? `, step ${t.steps.get(bar.number)}`
                                                          : ""}\n${duration(bar.to - bar.from)}`,
                event.clientX, event.clientY);
        else if (happened && py > TRACE_TOP - 8)
            tipShow(visible(happened.text), event.clientX, event.clientY);
        else
            tipHide();
    });
    canvas.addEventListener("pointerleave", tipHide);
    canvas.addEventListener("pointerdown", event => {
        if (event.button !== 0) return;
        const [px, py] = place(event);
        began = {px, above: py < TRACE_TOP - 6};
        canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointercancel", () => {
        began = null;
        t.mark(null);
        t.draw();
    });
    canvas.addEventListener("pointerup", event => {
        const [px, py] = place(event), start = began;
        began = null;
        t.mark(null);
        if (!start || Math.abs(px - start.px) < 6) {
            const bar = t.barAt(px, py), half = (t.answer.to - t.answer.from) / 2;
            if (bar)
                t.select(bar.number);
            else if (py < TRACE_TOP - 6)
                t.setSpan(t.wholeAt(px) - half, t.wholeAt(px) + half);
            return;
        }
        const at = start.above ? t.wholeAt : t.timeAt;
        t.setSpan(at(Math.min(start.px, px)), at(Math.max(start.px, px)));
    });
}

// Where the time of a group goes: waiting hatched, work solid, one after the other.
function traceTimes(answer) {
    const stages = answer.stages,
          rows = stages.name.map((name, i) => ({name, waited: stages.waited[i], had: stages.had[i]}))
                     .filter(row => isNumber(row.had));
    const total = rows.reduce((sum, row) => sum + (row.waited || 0) + row.had, 0),
          waiting = rows.reduce((sum, row) => sum + (row.waited || 0), 0), groups = maxOf(stages.groups);
    if (!rows.length || !(total > 0)) return el("p", {class: "empty"}, "No group in this span.");
    let at = 0;
    return [
        el("div", {class: "times-of"}, rows.map(row => {
            const part = (name, length) => {
                const piece =
                    el("i", {class: name, css: {left: `${at / total * 100}%`, width: `${length / total * 100}%`}});
                at += length;
                return piece;
            };
            return [
                el("span", {}, textNodes(row.name, 30)),
                el("span", {class: "track"}, part("waited", row.waited || 0), part("worked", row.had)),
                el("span", {class: "number"}, duration(row.had))
            ];
        })),
        el("p", {class: "note"},
            `${plural(groups || 0, "group")} in this span: ${duration(total)} from issue to the end, of which ${
                percent(waiting / total)} is waiting between stages (hatched)`)
    ];
}

function traceStages(answer) {
    const stages = answer.stages;
    return el("div", {class: "panel"},
        el("table", {},
            el("thead", {},
                el("tr", {},
                    ["stage", "typical", "slowest", "with a group"].map(
                        (name, i) => el("th", {scope: "col", class: i ? "number" : ""}, name)),
                    el("th", {class: "small-hide"}, ""))),
            el("tbody", {},
                stages.name.map((name, i) => el("tr", {}, el("td", {}, textNodes(name, 40)),
                                    el("td", {class: "number"}, duration(stages.typical[i])),
                                    el("td", {class: "number"}, duration(stages.slowest[i])),
                                    el("td", {class: "number"}, percent(stages.busy[i])),
                                    el("td", {class: "share small-hide"},
                                        el("span", {class: "bar"},
                                            el("span", {css: {width: `${(stages.busy[i] || 0) * 100}%`}}))))))));
}

// The line about the chosen group: its way through the stages.
function traceWay(answer, number, way) {
    const at = answer.groups.number.indexOf(number), id = answer.groups.id[at], step = answer.groups.step[at],
          issued = answer.groups.issued[at];
    let left = issued;
    const parts = way.map(bar => {
        const waited = Math.max(0, bar.from - left);
        left = bar.to;
        return `${visible(answer.stages.name[bar.stage])} ${duration(bar.to - bar.from)}${
            waited >= 0.001 ? ` (waited ${duration(waited)})` : ""}`;
    });
    return [
        groupLink(id, {}, {class: "go", id: "chosen-group"}), isNumber(step) ? ` step ${step}: ` : ": ",
        parts.join(" → "), `, in all ${duration(left - issued)}`
    ];
}

// The trace of the whole run, which every zoom shows on top. While the run goes on it is asked for again now and then.
const traceWhole = {
    answer: null,
    asked: 0
};

const TRACE_KEPT = 10; // seconds

async function traceWholeGet(view) {
    const old = performance.now() - traceWhole.asked > TRACE_KEPT * 1000;
    if (!traceWhole.answer || old && state.live.state !== "finished") {
        traceWhole.answer = await apiGet("/api/trace", {}, view.signal);
        traceWhole.asked = performance.now();
    }
    return traceWhole.answer;
}

const tracePage = {
    title: "Trace",
    path: "/trace",
    async draw(view) {
        const params = here.params, span = {from: params.from, to: params.to},
              zoomed = Boolean(params.from || params.to);
        const [whole, part] = await Promise.all(
            [traceWholeGet(view), zoomed ? apiGet("/api/trace", span, view.signal) : null]),
                      answer = part || whole;
        const length = whole.end - whole.start;
        if (!(length > 0) || !answer.stages.name.length) {
            domReplace(view.main,
                el("p", {class: "empty"}, "No group has gone through the stages yet, or the store keeps no times."));
            return {};
        }
        const setSpan = (from, to) => {
            const wide = Math.max(0.002, to - from), first = Math.max(whole.start, Math.min(whole.end - wide, from));
            return wide >= length * 0.999
                ? go("/trace", {}, {replace: true})
                : go("/trace", {from: first.toFixed(4), to: (first + wide).toFixed(4)}, {replace: true});
        };
        const now = () => ({from: answer.from, to: answer.to, wide: answer.to - answer.from});
        const zoom = by => () => {
            const {from, to, wide} = now(), half = wide * by / 2, middle = (from + to) / 2;
            return setSpan(middle - half, middle + half);
        };
        const shift = by => () => {
            const {from, to, wide} = now();
            return setSpan(Math.min(from + by * wide, whole.end - wide), Math.min(to + by * wide, whole.end));
        };
        const line = el("p", {class: "trace-line"},
            answer.bars
                ? el("span", {class: "hint"}, "A click follows a group through all stages.")
                : "Too many groups for bars: zoom in to see each. The height is the share of the time in which a stage had a group.");
        const drawn = traceCanvas(whole, answer, state.live,
            {setSpan, choose: (number, way) => domReplace(line, traceWay(answer, number, way))});
        const button = (name, text, action) => el("button",
            {type: "button", id: "trace-" + name, title: name, "aria-label": name, on: {click: action}}, text);
        const save = api.file
            ? null
            : el("a",
                  {class: "icon go", id: "perfetto", href: apiAddress("/trace.json", zoomed ? span : {}), download: ""},
                  "save for Perfetto");
        domReplace(view.main,
            el("div", {class: "controls"},
                el("span", {class: "tabs"}, button("zoom in", "zoom in", zoom(0.5)), button("zoom out", "out", zoom(2)),
                    button("earlier", "◂", shift(-0.3)), button("later", "▸", shift(0.3)),
                    button("all", "all", () => go("/trace", {}, {replace: true}))),
                el("span", {}, "shades alternate from step to step; ▼ restart or quarantine"), save),
            drawn.element, line,
            el("div", {class: "two"},
                el("section", {}, heading("Where the time of a group goes", zoomed ? "this span" : "whole run"),
                    traceTimes(answer)),
                el("section", {}, heading("Stages", zoomed ? "this span" : "whole run"), traceStages(answer))));
        return {
            redraw: drawn.draw,
            keys: {w: zoom(0.5), s: zoom(2), a: shift(-0.3), d: shift(0.3), 0: () => go("/trace", {}, {replace: true})}
        };
    },
};
