"use strict";
// The first page: is all well, where is the time spent, what was learnt, what should be looked at.

const OVERVIEW_RELOAD = 10; // seconds between two loads of curves and counts while the run goes on

// The curves, in their order. `spread`: the key of a band; `flat`: why a curve may never change.
function overviewCurves(run) {
    const clip = settingNumber(run, "optim", "clip_norm");
    return [
        {key: "reward", title: "Reward", note: "± std in the group", spread: "reward_std"},
        {key: "accuracy", title: "Accuracy"},
        {key: "bonus_rate", title: "Consistency bonus", note: "share", flat: "no bonus was given"},
        {key: "no_signal", title: "Without signal", note: "of groups", percent: true, low: 0, high: 1},
        {key: "format", title: "Format"},
        {key: "likelihood", title: "Likelihood", note: "of the answers"},
        {key: "consistent", title: "Consistency", note: "by the judge"},
        {key: "consistency", title: "Consistency", note: "by the model"},
        {key: "uncounted", title: "Named, yet wrong", note: "of completions", percent: true},
        {key: "completion_length", title: "Length", note: "tokens"},
        {key: "truncated", title: "Truncated", percent: true, flat: "every completion ended"},
        {key: "entropy", title: "Entropy"},
        {key: "grad_norm", title: "Gradient norm", note: clip > 0 ? `clip ${clip}` : ""},
        {key: "kl", title: "KL", flat: `no KL term${run.method ? ": method " + run.method : ""}`},
        {key: "logprob_difference_max", title: "Log p difference", note: "max", flat: "sampler and trainer agree"},
        {key: "age_mean", title: "Staleness", note: "steps", flat: "max_staleness 0"},
        {key: "lr", title: "Learning rate"},
        {key: "seconds", title: "Step", note: "seconds in optim"},
        {key: "rank_wait", title: "Wait for ranks", note: "seconds of a step"},
        {key: "rate", title: "Throughput", note: "groups/s"},
    ];
}

// Counts that lead to a filter.
function overviewFilters(run) {
    const size = run.group_size || 8;
    return [
        {name: "all wrong", where: "group.right = 0", needs: "rewards"},
        {name: "mixed", where: `group.right > 0 and group.right < ${size}`, needs: "rewards"},
        {name: "right without bonus", where: "accuracy = 1 and bonus = 0", needs: "bonus"},
        {name: "names the right option, yet counts as wrong", where: "group.named > 0", needs: "named"},
        {name: "form broken", where: "format = 0", needs: "format"},
        {name: "thinking contradicts the answer", where: "verdict = 0", needs: "judge"},
        {name: "truncated", where: "group.truncated > 0", needs: "rewards"},
    ].filter(filter => run.has[filter.needs]);
}

function overviewSpan() {
    const match = /^(\d+)-(\d+)$/.exec(here.params.steps || "");
    return match ? {from: match[1], to: match[2]} : {};
}

// ▲ where something was started again or lost.
function overviewMarks(live, metrics) {
    const times = metrics.time ? metrics.time.last : [];
    return live.events.filter((e, i) => ["restarted", "disconnected"].includes(e.kind) || (e.kind === "started" && i > 0))
        .map(event => {
            const at = times.findIndex(t => t >= event.time);
            return {step: event.step ?? (at >= 0 ? metrics.step[at] : null), text: event.text};
        })
        .filter(mark => mark.step !== null);
}

function overviewCurvesDraw(run, live, metrics) {
    const charts = [], flat = [], marks = overviewMarks(live, metrics);
    const zoom = (first, last) => go("/", {...here.params, steps: `${first}-${last}`}, {anchor: "learning"});
    for (const curve of overviewCurves(run)) {
        const column = metrics[curve.key];
        if (!column || meanOf(column.mean) === null) continue;
        const low = minOf(column.min), high = maxOf(column.max);
        if (metrics.step.length > 1 && low === high)
            flat.push({...curve, value: low});
        else
            charts.push(chartCurve({
                ...curve,
                step: metrics.step,
                first: metrics.first,
                mean: column.mean,
                min: column.min,
                max: column.max,
                marks,
                onSpan: zoom,
                spread: curve.spread && metrics[curve.spread] ? metrics[curve.spread].mean : null
            }));
    }
    const tenth = tenthOf(metrics.step), width = smoothingWidth(metrics.step.length), span = here.params.steps;
    const binned = metrics.step.some((s, i) => s !== metrics.first[i]);
    return el("section", {id: "learning"},
        heading("Learning",
            metrics.step.length === 1 ? "one step so far"
                : metrics.step.length
                ? `line: mean of ${width} ${binned ? "bins" : "steps"}; thin: each ${
                      binned ? "bin, with its extremes" : "step"}; the number: mean of the last ${
                      plural(tenth, binned ? "bin" : "step")}, or under the pointer${marks.length ? "; ▲ restart" : ""}`
                : "no step has been trained yet",
            span ? link("/", {...here.params, steps: null}, {class: "go", anchor: "learning", id: "all-steps"},
                       "all steps")
                : metrics.step.length > 3
                ? el("small", {class: "controls hint"}, "drag over a curve to see only these steps")
                : null),
        charts.length ? el("div", {class: "charts"}, charts) : null,
        flat.length ? el("p", {class: "flat"}, el("span", {}, "unchanged in all steps:"),
                          flat.map(c => el("span", {}, c.title, " ",
                                       el("b", {}, c.percent ? percent(c.value) : significant(c.value)),
                                       c.flat ? ` ${c.flat}` : "")))
                                              : null);
}

function overviewMapDraw(run, map) {
    const open = async (i, right, index) => {
        const steps = `${map.first[i]}-${map.step[i]}`, where = right > map.size ? "" : `group.right = ${right}`;
        if (index === null || right > map.size) return go("/groups", {steps, where});
        const found = await apiGet("/api/groups", {steps, where, limit: 200});
        const id = found.rows.id[Math.min(index, found.rows.id.length - 1)];
        if (id !== undefined) go("/group/" + encodeURIComponent(id), {});
    };
    const drawn = mapDraw(map, {open}), bins = map.step.some((s, i) => s !== map.first[i]);
    return {
        element: el("section", {},
            heading("Every group",
                `a column for each ${
                    bins ? "few steps"
                        : run.has.trains
                        ? "step"
                        : "few groups"}, a cell for each group. Colour is signal: groups that are all right or all wrong train nothing`,
                mapLegend(map.size)),
            drawn.element),
        draw: drawn.draw
    };
}

function overviewQuarantine(live, quarantine) {
    return el("section", {id: "quarantine"},
        heading("Quarantine",
            isNumber(live.quarantined) && live.done ? `${fixed(live.quarantined)} of ${plural(live.done, "group")}` : ""),
        quarantine.length
            ? el("div", {class: "list"},
                  quarantine.map(
                      (row, i) => el("details", {id: "quarantine-" + i},
                          el("summary", {}, el("b", {class: "count"}, fixed(row.count)),
                              el("span", {class: "stage-name"}, textNodes(row.stage, 40)),
                              el("span", {}, textNodes(row.reason, 300))),
                          el("p", {class: "ids"}, row.ids.map(id => [groupLink(id, {}, {}), " "]),
                              row.count > row.ids.length ? `and ${fixed(row.count - row.ids.length)} more` : ""))))
                                                         : el("p", {class: "empty"}, "No group is quarantined."));
}

const NOTICES = 8; // that are shown at once

function overviewNotices(run, live) {
    const events = live.events.filter(e => e.kind !== "quarantined").reverse(),
          lit = ["restarted", "slow", "disconnected", "failed"];
    const dated = events.length > 1 && timeOfDay(events[0].time, true).slice(0, 5) !==
            timeOfDay(events[events.length - 1].time, true).slice(0, 5);
    const row = e => el("li", {class: lit.includes(e.kind) ? "bad" : ""},
        el("time", {title: visible(new Date(e.time * 1000).toString())}, timeOfDay(e.time, dated)),
        sign(lit.includes(e.kind) ? "warn" : "off"), el("span", {}, textNodes(e.text, 300)));
    return el("section", {id: "notices"}, heading("Notices", "of the supervisor"),
        !run.has.events ? el("p", {class: "empty"}, "This run keeps no events.")
            : !events.length
            ? el("p", {class: "empty"}, "Nothing to notice.")
            : [
                  el("ul", {class: "notices"}, events.slice(0, NOTICES).map(row)),
                  events.length > NOTICES
                      ? el("details", {id: "older"}, el("summary", {}, `${fixed(events.length - NOTICES)} older`),
                            el("ul", {class: "notices"}, events.slice(NOTICES).map(row)))
                      : null
              ]);
}

function overviewLook(counts) {
    return el("section", {id: "look"}, heading("Look at these", "groups in which something says more than a mean"),
        !counts.length                 ? el("p", {class: "empty"}, "Nothing is scored.")
            : counts.every(c => !c.of) ? el("p", {class: "empty"}, "There are no groups yet.")
                                       : el("ul", {class: "look"}, counts.map(overviewLookAt)));
}

// A count that leads to its groups. One that is not whole yet says so.
function overviewLookAt(c) {
    if (!c.count && c.whole)
        return el("li", {class: "note"}, el("span", {class: "count"}, c.count === null ? ABSENT : "0"), c.name);
    return el("li", {title: c.whole ? null : `of the ${fixed(c.scanned)} groups that were looked at so far`},
        el("b", {class: "count"}, c.whole ? "" : "≥ ", fixed(c.count)),
        link("/groups", {where: c.where}, {class: "go"}, c.name));
}

const OVERVIEW_ASKS = 5; // how often at most a count is asked for until it is whole

async function overviewCount(filter, signal) {
    let answer = null;
    for (let i = 0; i < OVERVIEW_ASKS && !(answer && (answer.exact || !answer.cursor)); i++)
        answer = await apiGet(
            "/api/groups", {where: filter.where, limit: 0, after: answer && answer.cursor}, signal);
    return {
        ...filter,
        count: answer.missing.length ? null : answer.matched,
        whole: answer.exact || answer.missing.length > 0,
        scanned: answer.scanned,
        of: answer.total
    };
}

let overviewSettingsAll = null; // whether the defaults are shown; null: where there is room

function overviewSettings(run) {
    const stages = Object.entries(run.settings);
    if (!stages.length) return null;
    const list = el("div", {class: "settings"},
        stages.map(([stage, keys]) => el("div", {}, el("h3", {}, textNodes(stage, 60)),
                       el("dl", {class: "pairs"},
                           Object.entries(keys).map(([key, [value, standard]]) => [
                               el("dt", {class: standard ? "standard" : ""}, textNodes(key, 60)),
                               el("dd", {class: standard ? "standard" : ""}, pathNodes(value, 200))])))));
    const button = el("button", {type: "button", class: "chip", id: "all-settings"});
    const draw = () => {
        const all = overviewSettingsAll ?? innerWidth > 820;
        list.classList.toggle("given", !all);
        button.textContent = all ? "hide the defaults" : "show the defaults";
        button.setAttribute("aria-expanded", String(all));
    };
    button.addEventListener("click", () => {
        overviewSettingsAll = !(overviewSettingsAll ?? innerWidth > 820);
        draw();
    });
    draw();
    return el("section", {id: "settings"}, heading("Settings", "in grey: the default", button), list);
}

async function overviewLog(view) {
    const name = here.params.log;
    if (!name) return null;
    let content;
    try {
        content = el("pre", {tabindex: "0", class: "log"},
            textNodes(await apiText("/api/log/" + encodeURIComponent(name), {}, view.signal)));
    } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        content = problem(error);
    }
    return el("section", {id: "log"},
        heading(["Log of ", textNodes(name, 60)], "its end",
            link("/", {...here.params, log: null}, {class: "go"}, "close")),
        content);
}

const overviewPage = {
    title: "Overview",
    path: "/",
    async draw(view) {
        let run = state.run, loaded = 0, map = null, data = null;
        const load = async () => {
            run = await runAsk(view.signal);
            const span = overviewSpan(), zoomed = Object.keys(span).length > 0, columns = innerWidth < 820 ? 120 : 400;
            const count = filter => overviewCount(filter, view.signal);
            const [metrics, all, answer, quarantine, log, ...counts] = await Promise.all([
                apiGet("/api/metrics", {points: 400, ...span}, view.signal),
                zoomed ? apiGet("/api/metrics", {points: 400}, view.signal) : null,
                apiGet("/api/map", {columns, ...span}, view.signal), apiGet("/api/quarantine", {}, view.signal),
                overviewLog(view), ...overviewFilters(run).map(count)
            ]);
            data = {metrics, all: all || metrics, map: answer, quarantine, log, counts};
            loaded = performance.now();
        };
        const flowNote = () => state.live.state === "running"
            ? "the last minute. Curve: busy share. Below: state; age of its oldest group / typical time"
            : "the whole run. Bar: busy share";
        const drawTop = () => {
            const live = state.live;
            const flow = el("section", {id: "flow"},
                heading("Flow", flowNote(), link("/trace", {}, {class: "go"}, "timeline")), flowDraw(run, live));
            return [lampsDraw(run, live, data.all, data.quarantine), run.stages.length ? flow : null];
        };
        const drawAll = () => {
            map = overviewMapDraw(run, data.map);
            chartCursor.listeners = [];
            domReplace(view.main, drawTop(), data.log, map.element,
                run.stages.length ? overviewCurvesDraw(run, state.live, data.metrics) : null,
                el("div", {class: "three"}, overviewLook(data.counts), overviewQuarantine(state.live, data.quarantine),
                    run.stages.length ? overviewNotices(run, state.live) : null),
                overviewSettings(run));
            map.draw();
        };
        const keep = draw => { // what is open, focused or scrolled stays so
            const open = [...view.main.querySelectorAll("details[open]")].map(d => d.id),
                  focused = document.activeElement, logTop = document.querySelector(".log")?.scrollTop;
            const same = focused && view.main.contains(focused)
                ? [...view.main.querySelectorAll(focused.tagName)].indexOf(focused)
                : -1;
            draw();
            for (const id of open) document.getElementById(id)?.setAttribute("open", "");
            if (same >= 0) view.main.querySelectorAll(focused.tagName)[same]?.focus({preventScroll: true});
            if (logTop && document.querySelector(".log")) document.querySelector(".log").scrollTop = logTop;
        };
        const mark = () => [state.live.state, state.live.done].join();
        let shown = mark(), loading = false; // shown: the mark of what was loaded
        await load();
        drawAll();
        return {
            redraw: () => map.draw(),
            live: async () => {
                keep(() => {
                    const [lamps, flow] = drawTop();
                    view.main.querySelector("#lamps").replaceWith(lamps);
                    if (flow) view.main.querySelector("#flow").replaceWith(flow);
                });
                if (loading) return;
                loading = true;
                try {
                    // A run that has ended is not asked again, so its end is loaded at once.
                    while (mark() !== shown &&
                        (state.live.state !== "running" || performance.now() - loaded >= OVERVIEW_RELOAD * 1000)) {
                        const now = mark();
                        await load();
                        shown = now;
                        keep(drawAll);
                    }
                } catch (error) {
                    if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error;
                } finally {
                    loading = false;
                }
            },
            keys: spanKeys(() => data.all.step, () => overviewSpan(),
                (first, last) =>
                    go("/", {...here.params, steps: first === null ? null : `${first}-${last}`}, {replace: true})),
        };
    },
};

// The keys w a s d 0 for a span of steps. `steps` are all, `span` is the present one as {from, to}, either may be
// missing.
function spanKeys(steps, span, set) {
    const move = by => () => {
        const all = steps();
        if (all.length < 4) return;
        const first = all[0], last = all[all.length - 1], now = span(), from = Number(now.from ?? first),
              to = Number(now.to ?? last), width = to - from;
        const wide = by.zoom ? Math.max(3, Math.round(width * by.zoom)) : width,
              centre = (from + to) / 2 + (by.shift || 0) * width;
        if (wide >= last - first) return set(null, null);
        const start = Math.round(Math.max(first, Math.min(last - wide, centre - wide / 2)));
        return set(start, start + wide);
    };
    return {
        w: move({zoom: 0.5}),
        s: move({zoom: 2}),
        a: move({shift: -0.25}),
        d: move({shift: 0.25}),
        0: () => set(null, null)
    };
}
