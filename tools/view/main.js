"use strict";
// The frame around the pages: addresses, keys, the header, what is asked of the server while the run goes on.

// A page: {title, path, draw(view)}. draw fills view.main and returns {live, redraw, keys}, all optional: live() after
// new reports, redraw() when colours or widths have changed, and a function for each key. view.signal ends its
// requests.
const here = {
    path: "/",
    params: {}
}; // the present address
const state = {
    run: null,
    live: null,
    shown: null,
    view: null,
    failed: null,
    printing: false
};

const LIVE_SECONDS = 2, HISTORY_ROWS = 1800, EVENT_ROWS = 1000;

function pageNamed(name) {
    return {overview: overviewPage, groups: groupsPage, group: groupPage, compare: comparePage, trace: tracePage}[name];
}

// ---- addresses ----

function pageOf(path) {
    if (path.startsWith("/group/")) return "group";
    return {"/": "overview", "/groups": "groups", "/compare": "compare", "/trace": "trace"}[path] || null;
}

function addressOf(path, params) {
    return (api.file ? "#" : "") + apiAddress(path, params);
}

function addressRead() {
    const text = api.file ? location.hash.slice(1) || "/" : location.pathname + location.search;
    const mark = text.indexOf("?");
    here.path = mark < 0 ? text : text.slice(0, mark);
    here.params = Object.fromEntries(new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1)));
}

// Shows an address. `replace`: the one before it is no place to come back to. `anchor`: the id of a section to scroll
// to.
function go(path, params, {replace = false, anchor = null} = {}) {
    const address = addressOf(path, params);
    if (replace)
        history.replaceState(null, "", address);
    else
        history.pushState(null, "", address);
    return show(anchor, replace);
}

function link(path, params, attributes, ...children) {
    const {anchor, ...rest} = attributes || {};
    const follow = event => {
        if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        go(path, params, {anchor});
    };
    return el("a", {href: addressOf(path, params), on: {click: follow}, ...rest}, ...children);
}

function groupLink(id, params, attributes, ...children) {
    return link(
        "/group/" + encodeURIComponent(id), params, attributes, ...(children.length ? children : [textNodes(id, 60)]));
}

// ---- showing a page ----

async function show(anchor = null, stay = false) {
    addressRead();
    const name = pageOf(here.path), focused = document.activeElement ? document.activeElement.id : "";
    if (state.view) state.view.controller.abort();
    tipHide();
    chartCursor.listeners = [];
    chartCursor.step = null;
    const controller = new AbortController(), main = document.getElementById("main");
    const content = el("div", {class: "page"});
    const view = {main: content, signal: controller.signal, controller, name, done: false};
    const samePage = state.view && state.view.name === name;
    state.view = view;
    state.shown = null;
    headerDraw();
    document.title =
        `${name ? pageNamed(name).title : "nothing here"} · ${state.run ? visible(state.run.name) : "caravan"}`;
    main.setAttribute("aria-busy", "true");
    if (!samePage) domReplace(main, content);
    try {
        if (!name) throw new ApiError(`There is no page ${here.path}.`, 404, null);
        const shown = await pageNamed(name).draw(view);
        if (controller.signal.aborted) return;
        if (samePage) domReplace(main, content);
        state.shown = shown || {};
    } catch (error) {
        if (error.name === "AbortError" || controller.signal.aborted) return;
        domReplace(main, content);
        domReplace(content, problem(error));
        if (!(error instanceof ApiError)) throw error;
    } finally {
        if (!controller.signal.aborted) {
            main.removeAttribute("aria-busy");
            view.done = true;
        }
    }
    if (state.shown && state.shown.redraw) state.shown.redraw(); // now that widths are known
    const target = anchor && document.getElementById(anchor),
          again = stay && focused && document.getElementById(focused);
    if (target)
        target.scrollIntoView({block: "start"});
    else if (!stay && !samePage)
        scrollTo(0, 0);
    if (again) again.focus({preventScroll: true});
    document.documentElement.dataset.shown = String(Number(document.documentElement.dataset.shown || 0) + 1);
}

// What could not be shown, and why.
function problem(error) {
    const text = error instanceof ApiError ? error.message : "A mistake in this page: " + error.message;
    return el("p", {class: "problem", role: "alert"}, sign("warn"), " ", visible(text));
}

// ---- the header ----

const STATES = {
    running: ["running", "running"],
    finished: ["over", "finished"],
    "not active": ["over", "not active"]
};

// How a run that is not active ended, by its events; null if they do not say.
function runEnd(live) {
    const last = live.events.filter(e => ["started", "stopped", "failed"].includes(e.kind)).pop();
    return last && last.kind !== "started" ? [last.kind === "failed" ? "warn" : "over", last.kind] : null;
}

function headerDraw() {
    const run = state.run, live = state.live;
    const current = pageOf(here.path) === "group" ? "groups" : pageOf(here.path);
    domReplace(document.getElementById("nav"),
        ["overview", "groups", "compare", "trace"].map(
            name => link(pageNamed(name).path, {}, {"aria-current": name === current ? "page" : null, id: "to-" + name},
                pageNamed(name).title)));
    if (!run) return;
    const ended = live.state === "not active" ? runEnd(live) : null;
    const [shape, word] = state.failed ? ["off", "the viewer does not answer"]
        : ended                        ? ended
                                       : STATES[live.state] || ["off", live.state];
    const share = live.total > 0 && isNumber(live.done) ? Math.min(1, live.done / live.total) : null;
    const finished = live.state !== "running" && isNumber(run.seconds) ? `in ${clockDuration(run.seconds)}` : null;
    domReplace(document.getElementById("status"),
        el("b", {class: "run", title: visible(run.path || "")}, textNodes(run.name, 40)),
        el("span", {class: word === "failed" ? "state bad" : "state"}, sign(shape), word),
        isNumber(live.step) ? el("span", {}, "step ", el("b", {}, fixed(live.step))) : null,
        share === null ? null : el("span", {class: "bar progress"}, el("span", {css: {width: `${share * 100}%`}})),
        isNumber(live.done) ? el("span", {}, el("b", {}, fixed(live.done)),
                                  isNumber(live.total) ? ` of ${fixed(live.total)}` : "", " groups")
                                                       : null,
        live.state === "running" && isNumber(live.rate)
            ? el("span", {class: "wide"},
                  `${rateText(live.rate, "groups")}${isNumber(live.left) ? `, ${clockDuration(live.left)} left` : ""}`)
                                                                        : null,
        finished ? el("span", {class: "wide"}, finished) : null);
    headerMeasure();
}

// The heads of tables stay below the header.
function headerMeasure() {
    document.documentElement.style.setProperty(
        "--header", document.getElementById("header").offsetHeight + "px");
}

function footerDraw() {
    const run = state.run, left = api.file ? api.file.left_out || [] : [];
    domReplace(document.getElementById("footer"), [
        visible(run.path ? `${run.version}, ${run.path}` : run.version), ...run.notes,
        ...(api.file ? ["This file loads nothing."] : []), ...left.map(text => "Left out: " + text)
    ].map(text => el("p", {}, textNodes(text))));
}

// ---- light and dark ----

function themeSet(theme) {
    document.documentElement.dataset.theme = theme;
    if (state.shown && state.shown.redraw) state.shown.redraw();
}

function themeStart() {
    const system = matchMedia("(prefers-color-scheme: dark)"), chosen = () => {
        try {
            return localStorage.getItem("caravan-theme");
        } catch (error) {
            return null; // a file may have no storage
        }
    };
    const follow = () => themeSet(chosen() || (system.matches ? "dark" : "light"));
    system.addEventListener("change", follow);
    follow();
    const print = printing => () => {
        state.printing = printing;
        if (printing)
            themeSet("light");
        else
            follow();
    };
    addEventListener("beforeprint", print(true));
    addEventListener("afterprint", print(false));
}

function themeToggle() {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
        localStorage.setItem("caravan-theme", theme);
    } catch (error) {
        // it is then forgotten with the page
    }
    themeSet(theme);
}

// ---- keys ----

const KEYS = [
    ["1 2 3 4", "overview, groups, compare, trace"],
    ["/", "to the condition of groups"],
    ["j k", "down and up in a table"],
    ["Enter", "open the row"],
    ["[ ]", "the group before, the group after"],
    ["s v f", "of a group: shading, layout, shared beginnings"],
    ["← →", "a token, a step, a cell"],
    ["w a s d 0", "of a trace and of curves: closer, left, wider, right, all"],
    ["Esc", "back to the list; leave a field"],
    ["t", "light or dark"],
    ["?", "this list"],
];

function keysShow() {
    const dialog = document.getElementById("keys");
    if (dialog.open) return dialog.close();
    domReplace(dialog, el("h2", {}, "Keys"),
        el("dl", {},
            KEYS.map(([key, text]) => [el("dt", {}, key.split(" ").map(k => el("kbd", {}, k))), el("dd", {}, text)])),
        el("button", {type: "button", class: "icon", on: {click: () => dialog.close()}}, "close"));
    dialog.showModal();
}

function keyPressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const dialog = document.getElementById("keys"),
          field = event.target.closest && event.target.closest("input, select, textarea");
    const frame = document.getElementById("frame");
    if (frame.open) {
        const turn = {ArrowLeft: "before", ArrowRight: "after"}[event.key];
        if (turn) frame.querySelector(`[aria-label="frame ${turn}"]`).click();
        return;
    }
    if (dialog.open) {
        if (event.key === "?") event.preventDefault(), dialog.close();
        return;
    }
    if (field) {
        if (event.key === "Escape") field.blur();
        return;
    }
    const numbers = {1: "/", 2: "/groups", 3: "/compare", 4: "/trace"};
    const common = {
        "?": keysShow,
        t: themeToggle,
        "/": () =>
            go("/groups", here.path === "/groups" ? here.params : {}, {replace: here.path === "/groups"}).then(() => {
                const where = document.getElementById("where");
                if (where) where.focus();
            })
    };
    const own = state.shown && state.shown.keys ? state.shown.keys[event.key] : null;
    const action = own || common[event.key] || (numbers[event.key] ? () => go(numbers[event.key], {}) : null);
    if (!action || action(event) === false) return;
    event.preventDefault();
}

// ---- reports of the run ----

// Asks again what the run has, which at its beginning is nothing, until it is over. Returns it.
async function runAsk(signal) {
    if (api.file || state.run.state === "finished") return state.run;
    state.run = await apiGet("/api/run", {}, signal);
    headerDraw();
    footerDraw();
    return state.run;
}

// Adds what is new. A viewer that was started again begins anew, and the history does with other replicas.
function liveMerge(answer) {
    const before = state.live;
    if (before && answer.seq >= before.seq) {
        const {time, busy} = before.replicas.name.join() === answer.replicas.name.join() ? before.history
                                                                                         : {time: [], busy: []};
        answer.history = {
            time: [...time, ...answer.history.time].slice(-HISTORY_ROWS),
            busy: [...busy, ...answer.history.busy].slice(-HISTORY_ROWS)
        };
        answer.events = [...before.events, ...answer.events].slice(-EVENT_ROWS);
    }
    state.live = answer;
}

async function liveAsk() {
    try {
        const before = state.live.replicas.name.join();
        liveMerge(await apiGet("/api/live", {after: state.live.seq}));
        if (state.live.replicas.name.join() !== before) state.run = await apiGet("/api/run"); // it was resumed with others
        state.failed = null;
    } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        state.failed = error;
    }
    headerDraw();
    if (!state.failed && state.shown && state.shown.live) state.shown.live();
}

function liveLoop() {
    // One that is over is not asked again; one that is not active may be resumed.
    const due = () => state.live.state === "running" || (state.live.state === "not active" && ticks % 15 === 0);
    let waiting = false, ticks = 0;
    const tick = async () => {
        ticks++;
        if (waiting || document.hidden || api.file || !due()) return;
        waiting = true;
        try {
            await liveAsk();
        } finally {
            waiting = false;
        }
    };
    setInterval(tick, LIVE_SECONDS * 1000);
    document.addEventListener("visibilitychange", tick);
}

// ---- the start ----

async function start() {
    apiOpen();
    themeStart();
    document.getElementById("theme").addEventListener("click", themeToggle);
    document.getElementById("help").addEventListener("click", keysShow);
    document.getElementById("skip").addEventListener("click", event => {
        event.preventDefault();
        document.getElementById("main").focus();
    });
    addEventListener("keydown", keyPressed);
    addEventListener("popstate", () => show());
    let width = innerWidth;
    addEventListener("resize", () => {
        if (innerWidth === width) return;
        width = innerWidth;
        headerMeasure();
        if (state.shown && state.shown.redraw) state.shown.redraw();
    });
    try {
        state.run = await apiGet("/api/run");
        liveMerge(await apiGet("/api/live"));
    } catch (error) {
        document.getElementById("main").append(problem(error));
        if (!(error instanceof ApiError)) throw error;
        return;
    }
    footerDraw();
    await show();
    liveLoop();
}

document.addEventListener("DOMContentLoaded", start);
