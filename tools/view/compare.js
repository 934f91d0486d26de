"use strict";
// Two runs, evaluations or files on the samples that both have.

const COMPARE_ROWS = 25; // that are shown at first

// What the reader has opened in the list, which the next drawing of the same list opens again.
const compareOpen = {
    key: null,
    samples: new Set(),
    more: false
};

// A score on the axis of both: a hollow circle for A, a filled one for B, with their intervals.
function compareInterval(score) {
    const all = [score.a, score.b].filter(Boolean).flat().filter(isNumber);
    // From zero, so that a small difference does not look large.
    const low = Math.min(0, minOf(all) ?? 0), most = maxOf(all) ?? 1, high = low === 0 && most <= 1 ? 1 : Math.max(0, most) * 1.1,
          x = v => 8 + 144 * (high > low ? (v - low) / (high - low) : 0.5);
    const one = (values, name) => values ? [isNumber(values[1]) ? svg("line", {class: name, x1: x(values[1]), x2: x(values[2]), y1: 8, y2: 8}) : null, svg("circle", {class: name, cx: x(values[0]), cy: 8, r: 4})] : [];
    return svg("svg", {viewBox: "0 0 160 16", "aria-hidden": "true"},
        svg("line", {class: "ground", x1: 6, x2: 154, y1: 8, y2: 8}), one(score.a, "a"), one(score.b, "b"));
}

// The difference around zero; grey where its interval has zero in it.
function compareDifference(score, most) {
    if (!score.difference) return null;
    const [mean, low, high] = score.difference, x = v => 80 + 72 * Math.max(-1, Math.min(1, v / most)),
                      sure = isNumber(low) && (low > 0 || high < 0), name = sure ? "sure" : "unsure";
    return svg("svg", {viewBox: "0 0 160 16", "aria-hidden": "true"},
        svg("line", {class: "ground", x1: 6, x2: 154, y1: 8, y2: 8}),
        svg("line", {class: "zero", x1: 80, x2: 80, y1: 2, y2: 14}),
        isNumber(low) ? svg("line", {class: name, x1: x(low), x2: x(high), y1: 8, y2: 8}) : null,
        svg("circle", {class: name, cx: x(mean), cy: 8, r: 3.4}));
}

function compareScores(answer) {
    const half = (values, name = "note spread") => isNumber(values[1])
        ? el("span", {class: name}, ` ± ${fixed((values[2] - values[1]) / 2, values.digits)}`)
        : null;
    const number = (values, digits, sign = fixed) => values
        ? el("td", {class: "number"}, sign(values[0], digits),
              half(Object.assign([...values], {digits}), sign === signed ? "note" : undefined))
        : el("td", {class: "number"}, ABSENT);
    const large = score => Math.max(...[score.a, score.b].filter(Boolean).flat().filter(isNumber).map(Math.abs)) > 5;
    const most = Math.max(1e-9,
        ...answer.scores.filter(s => s.difference && !large(s))
            .map(s => Math.max(...s.difference.filter(isNumber).map(Math.abs))));
    return el("section", {},
        heading("Scores", "mean over samples, 95 % interval; the difference is taken sample by sample"),
        el("div", {class: "panel"},
            el("table", {},
                el("thead", {},
                    el("tr", {}, el("th", {scope: "col"}, ""),
                        el("th", {scope: "col", class: "number name"}, textNodes(answer.a.name, 40)),
                        el("th", {scope: "col", class: "number name"}, textNodes(answer.b.name, 40)),
                        el("th", {scope: "col", class: "column-3"}, "○ A  ● B"),
                        el("th", {scope: "col", class: "number"}, "B − A"),
                        el("th", {scope: "col", class: "column-3"}, "difference"))),
                el("tbody", {}, answer.scores.map(score => {
                    const digits = large(score) ? 1 : 3;
                    return el("tr", {},
                        el("th", {scope: "row"},
                            score.name === "surprise" ? "surprise (−log p)" : textNodes(score.name, 40)),
                        number(score.a, digits), number(score.b, digits),
                        el("td", {class: "interval column-3"}, compareInterval(score)),
                        number(score.difference, digits, signed),
                        el("td", {class: "difference column-3"},
                            compareDifference(score,
                                large(score) && score.difference
                                    ? Math.max(...score.difference.filter(isNumber).map(Math.abs), 1)
                                    : most)));
                })))));
}

function compareMatrix(answer, set) {
    if (!answer.matrix)
        return el("section", {class: "changes"}, heading("What changed", compareChanges(answer)),
            el("p", {class: "empty"}, "More completions than a matrix can show."));
    const matrix = answer.matrix, high = matrix.length, wide = high ? matrix[0].length : 0,
          most = Math.max(1, ...matrix.flat()), cell = here.params.cell;
    if (high > 17 || wide > 17)
        return el("section", {class: "changes"}, heading("What changed", compareChanges(answer)),
            el("p", {class: "empty"}, "More than 16 completions each: no matrix."));
    const rows = Array.from({length: wide}, (_, k) => wide - 1 - k);
    return el("section", {class: "changes"}, heading("What changed", compareChanges(answer)),
        el("table", {class: "matrix"},
            el("tbody", {},
                rows.map(
                    j => el("tr", {}, el("th", {scope: "row"}, j === wide - 1 ? `B ${j}` : String(j)),
                        matrix.map(
                            (row, i) => el("td", {},
                                row[j]
                                    ? (() => {
                                          const button = el("button", {
                                              type: "button",
                                              id: `cell-${i}-${j}`,
                                              "aria-pressed": String(cell === `${i},${j}`),
                                              title: `${plural(row[j], "sample")}: ${i} right in A, ${j} in B`,
                                              on: {click: () => set({cell: cell === `${i},${j}` ? null : `${i},${j}`})}
                                          },
                                              fixed(row[j]));
                                          button.style.setProperty("--share", (0.15 + 0.7 * row[j] / most).toFixed(2));
                                          return button;
                                      })()
                                    : null)))),
                el("tr", {}, el("th", {}, ""),
                    matrix.map((_, i) => el("th", {scope: "col"}, i === 0 ? "A 0" : String(i)))))),
        el("p", {class: "note"}, "columns: right completions in A; rows: in B",
            el("span", {class: "hint"}, "; click a cell")));
}

function compareChanges(answer) {
    return `${fixed(answer.better)} better, ${fixed(answer.worse)} worse, ${fixed(answer.alike)} alike`;
}

function compareThumbs(key, frames) {
    if (key === null || !frames) return el("span", {class: "note"}, ABSENT);
    const numbers = Array.from({length: Math.min(4, frames)}, (_, i) => Math.floor(i * frames / Math.min(4, frames)));
    return el("span", {class: "thumbs"},
        numbers.map(n => apiFrame(key, n))
            .filter(Boolean)
            .map(address => el("img", {src: address, alt: "", loading: "lazy"})));
}

// What the cells of a side, "a" or "b", can show.
function compareHas(answer, side) {
    const scored = name => answer.scores.some(score => score.name === name && score[side]);
    return {bonus: scored("bonus"), format: scored("format")};
}

function compareList(answer, view) {
    const key = [answer.a.name, answer.b.name, here.params.cell].join("\n");
    if (compareOpen.key !== key) Object.assign(compareOpen, {key, samples: new Set(), more: false});
    const hasA = compareHas(answer, "a"), hasB = compareHas(answer, "b");
    const likely = [...answer.rows.likelihood_a, ...answer.rows.likelihood_b].some(isNumber),
          framed = answer.rows.key.some(key => key !== null);
    const rows = answer.rows, body = el("tbody", {}), shown = new Map(),
          samples = rows.sample.map((sample, i) => sample ?? rows.a[i]); // a group without a sample is its own
    const toggle = async row => {
        const i = Number(row.dataset.id);
        if (shown.has(i)) {
            shown.get(i).remove();
            shown.delete(i);
            compareOpen.samples.delete(samples[i]);
            row.querySelector("button").setAttribute("aria-expanded", "false");
            return;
        }
        const cell = el("td", {colspan: "7"}, "…"), unfolded = el("tr", {class: "unfolded"}, cell);
        shown.set(i, unfolded);
        compareOpen.samples.add(samples[i]);
        row.after(unfolded);
        row.querySelector("button").setAttribute("aria-expanded", "true");
        try {
            domReplace(cell, el("div", {class: "pair"}, await Promise.all([
                compareTexts(answer.a.name, rows.a[i], view), compareTexts(answer.b.name, rows.b[i], view)
            ])));
        } catch (error) {
            if (error.name === "AbortError") return;
            domReplace(cell, problem(error));
            if (!(error instanceof ApiError)) throw error;
        }
    };
    const append = i => {
        const sample = samples[i];
        const change = rows.change[i], counts = answer.a.size === answer.b.size;
        const row = el("tr", {
            "data-id": i,
            on: {
                click: event => {
                    if (!event.target.closest("a, button")) toggle(row);
                }
            }
        },
            framed ? el("td", {class: "column-2"}, compareThumbs(rows.key[i], rows.frames[i])) : null,
            el("td", {class: "sample"},
                el("button", {
                    type: "button",
                    class: "chip",
                    "aria-expanded": "false",
                    title: "the texts of both",
                    id: "sample-" + i,
                    on: {click: () => toggle(row)}
                },
                    textNodes(sample, 30))),
            el("td", {class: "cut column-2", dir: "auto"},
                rows.question[i] === null ? ABSENT : textNodes(rows.question[i], 120)),
            el("td", {}, cellsDraw(rows.marks_a[i], rows.marks_a[i].length, hasA)),
            el("td", {}, cellsDraw(rows.marks_b[i], rows.marks_b[i].length, hasB)),
            el("td", {class: "number"},
                el("span", {class: change > 0 ? "better"
                        : change < 0          ? "worse"
                                              : "note"},
                    change === null  ? ABSENT
                        : !change    ? "0"
                        : counts     ? signed(rows.right_b[i] - rows.right_a[i], 0)
                                     : signed(100 * change, 0) + " %")),
            likely ? el("td", {class: "number column-3"},
                         isNumber(rows.likelihood_a[i]) || isNumber(rows.likelihood_b[i])
                             ? `${fixed(rows.likelihood_a[i], 2)} → ${fixed(rows.likelihood_b[i], 2)}`
                             : ABSENT)
                   : null);
        body.append(row);
        if (compareOpen.samples.has(sample)) toggle(row);
    };
    const first = compareOpen.more ? rows.sample.length : Math.min(COMPARE_ROWS, rows.sample.length), rest = rows.sample.length - first;
    for (let i = 0; i < first; i++) append(i);
    const more = rest > 0 ? el("button", {
        type: "button",
        class: "chip",
        id: "more-samples",
        on: {
            click: () => {
                for (let i = first; i < rows.sample.length; i++) append(i);
                compareOpen.more = true;
                more.remove();
            }
        }
    },
                                `show ${fixed(rest)} more`)
                          : null;
    const table = el("div", {class: "panel"},
        rows.sample.length
            ? el("table", {class: "samples"},
                  el("thead", {},
                      el("tr", {}, framed ? el("th", {scope: "col", class: "column-2"}, "frames") : null,
                          el("th", {scope: "col"}, "sample"), el("th", {scope: "col", class: "column-2"}, "question"),
                          el("th", {scope: "col"}, "A"), el("th", {scope: "col"}, "B"),
                          el("th", {scope: "col", class: "number"}, "change"),
                          likely ? el("th", {scope: "col", class: "number column-3"}, "likelihood") : null)),
                  body)
            : el("p", {class: "empty"}, "No sample."));
    return {table: el("div", {}, table, el("div", {class: "more-rows"}, more)), toggle};
}

// The distinct texts of a group with their counts, the most frequent first.
async function compareTexts(name, id, view) {
    const answer = await apiGet(groupPath(id), {of: name}, view.signal), texts = new Map();
    (answer.group.completions || []).forEach((completion, i) => {
        const text = completion.text ?? "",
              known = texts.get(text) || {count: 0, right: Boolean(answer.marks[i] & MARK_RIGHT)};
        known.count++;
        texts.set(text, known);
    });
    return el("div", {},
        el("p", {}, el("b", {}, textNodes(name, 40)), " ", groupLink(id, {of: name}, {class: "go"}),
            el("span", {class: "note"}, " answer: ", answer.solution ?? textNodes(answer.group.prompt.solution, 80))),
        el("div", {class: "texts", tabindex: "0"},
            [...texts]
                .sort((a, b) => b[1].count - a[1].count)
                .map(([text, {count, right}]) => [el("span", {class: "times"}, `${count} ×`),
                         el("span", {class: `text ${right ? "right" : "wrong"}`}, sign(right ? "ok" : "warn"), " ",
                             textNodes(text, 4000))])));
}

// Two runs: their curves over each other, and the settings that differ.
async function compareRuns(a, b, [runA, runB], view) {
    let found;
    if (runA.kind !== "run" || runB.kind !== "run") return null;
    try {
        found = await Promise.all([a, b].map(of => apiGet("/api/metrics", {of, points: 400}, view.signal)));
    } catch (error) {
        if (!(error instanceof ApiError) || error.code !== 404) throw error;
        return el("p", {class: "empty"}, visible(error.message));
    }
    const [one, two] = found;
    const both = overviewCurves(runA).filter(curve => one[curve.key] && two[curve.key] &&
            meanOf(one[curve.key].mean) !== null && meanOf(two[curve.key].mean) !== null);
    const changes = curve => new Set([...one[curve.key].mean, ...two[curve.key].mean].filter(isNumber)).size > 1;
    const charts = both.filter(changes).map(curve => chartCurve({
        ...curve,
        note: "",
        spread: null,
        step: one.step,
        first: one.first,
        mean: one[curve.key].mean,
        second: {step: two.step, mean: two[curve.key].mean}
    }));
    const value = (run, stage, key) =>
        run.settings[stage] && run.settings[stage][key] ? run.settings[stage][key][0] : null;
    const only = (one, two) => Object.keys(one.settings).filter(stage => !two.settings[stage]);
    const names = Object.keys(runA.settings).filter(stage => runB.settings[stage]).flatMap(
        stage => [...new Set([...Object.keys(runA.settings[stage]), ...Object.keys(runB.settings[stage])])]
                     .map(key => [stage, key]));
    const alone = [[a, only(runA, runB)], [b, only(runB, runA)]].filter(([, stages]) => stages.length)
                      .map(([name, stages]) => el("p", {}, "only in ", textNodes(name, 30), ": ", stages.join(", ")));
    const different = names.filter(([stage, key]) => value(runA, stage, key) !== value(runB, stage, key));
    const shown = text => text === null ? ABSENT : pathNodes(text, 200);
    return [
        el("section", {},
            heading("Curves",
                charts.length ? [el("span", {}, "line: ", textNodes(a, 30), "; dashes: ", textNodes(b, 30),
                                    "; the numbers: A / B, means of the last tenth, or under the pointer")]
                              : ""),
            charts.length ? el("div", {class: "charts pairwise"}, charts)
                          : el("p", {class: "empty"}, "They have no curve in common.")),
        el("section", {}, heading("Settings that differ", ""), alone,
            different.length ? el("div", {class: "panel"},
                                   el("table", {class: "different"},
                                       el("thead", {},
                                           el("tr", {}, el("th", {scope: "col"}, "setting"),
                                               el("th", {scope: "col"}, textNodes(a, 30)),
                                               el("th", {scope: "col"}, textNodes(b, 30)))),
                                       el("tbody", {},
                                           different.map(([stage, key]) => el("tr", {},
                                                             el("td", {}, textNodes(`${stage}.${key}`, 80)),
                                                             el("td", {}, shown(value(runA, stage, key))),
                                                             el("td", {}, shown(value(runB, stage, key))))))))
                             : el("p", {class: "empty"}, "None."))
    ];
}

// Both runs, as they are now.
function compareAsk(a, b, view) {
    return Promise.all([a, b].map(of => apiGet("/api/run", {of}, view.signal)));
}

// What tells that a run has grown. One that nobody watches does not say that it is running.
function compareMark(run) {
    return [run.state, run.last_step, run.seconds].join();
}

function compareState(run, grown) {
    if (run.kind !== "run") return null;
    const [shape, word] = grown || run.state === "running" ? STATES.running : STATES[run.state] || ["off", run.state];
    return el("span", {class: "state"}, sign(shape), ` ${word}${
        isNumber(run.last_step) && run.has.trains ? `, step ${fixed(run.last_step)}` : ""}`);
}

const compareWatched = {
    seconds: 10, // between two looks at what may have grown
    names: null,
    grown: []
}; // which of the two had grown when the page was drawn again

// Draws the page again when a run has grown. Of a run that is over nothing is asked.
async function compareWatch(a, b, runs, view) {
    const over = run => run.kind !== "run" || run.state === "finished";
    while (!api.file && !(over(runs[0]) && over(runs[1]))) {
        await new Promise(resolve => setTimeout(resolve, compareWatched.seconds * 1000));
        if (view.signal.aborted) return;
        if (document.hidden) continue;
        try {
            const now = await compareAsk(a, b, view);
            const grown = now.map((run, i) => compareMark(run) !== compareMark(runs[i]));
            if (!grown.some(Boolean)) continue;
            Object.assign(compareWatched, {names: [a, b].join("\n"), grown});
            return show(null, true);
        } catch (error) {
            if (error.name === "AbortError") return;
            if (!(error instanceof ApiError)) throw error; // without an answer the header says so
        }
    }
}

const comparePage = {
    title: "Compare",
    path: "/compare",
    async draw(view) {
        const known = api.file && api.file.routes["/api/compare"],
              names = known && known.a ? [known.a.name, known.b.name] : [state.run.name, ...state.run.others];
        if (names.length < 2 || api.file && !(known && known.a)) {
            domReplace(view.main,
                el("p", {class: "empty"},
                    api.file
                        ? "This file has one run alone."
                        : "There is nothing to compare with. Give caravan view several runs, stores or files: caravan view RUN OTHER"));
            return {};
        }
        const a = here.params.a || names[0], b = here.params.b || names.find(name => name !== a),
              cell = here.params.cell || null;
        const set = change => go("/compare", {a, b, cell, ...change}, {replace: true});
        const choose = (side, value) => el("label", {}, side.toUpperCase(),
            el("select", {id: "choose-" + side, on: {change: event => set({[side]: event.target.value, cell: null})}},
                names.map(name => el("option", {value: name, selected: name === value}, visible(name).slice(0, 60)))));
        const [answer, runs] = await Promise.all(
            [apiGet("/api/compare", {a, b, cell, limit: 200}, view.signal), compareAsk(a, b, view)]);
        const watched = compareWatched.names === [a, b].join("\n") ? compareWatched.grown : [];
        compareWatched.names = null;
        compareWatch(a, b, runs, view);
        const size = answer.a.size === answer.b.size ? `${plural(answer.a.size, "completion")} each`
                                                     : `${answer.a.size} and ${answer.b.size} completions each`;
        const top = el("div", {class: "filter"}, choose("a", a), api.file ? null : compareState(runs[0], watched[0]),
            choose("b", b), api.file ? null : compareState(runs[1], watched[1]),
            el("span", {class: "note"},
                `${plural(answer.samples, "sample")} in both, ${size}${
                    answer.repeated ? "; of a sample that was drawn several times the last draw counts" : ""}`));
        if (!answer.samples) {
            domReplace(view.main, top, el("p", {class: "empty"}, "They have no sample in common."),
                await compareRuns(a, b, runs, view));
            return {};
        }
        const list = compareList(answer, view),
              title = cell === null ? "All samples"
            : /,/.test(cell)        ? `${cell.split(",")[0]} right in A, ${cell.split(",")[1]} in B`
                                    : cell[0].toUpperCase() + cell.slice(1);
        const filters = el("span", {class: "controls"},
            ["better", "worse", "alike"].map(name => el("button", {
                type: "button",
                class: "chip",
                id: "only-" + name,
                "aria-pressed": String(cell === name),
                on: {click: () => set({cell: cell === name ? null : name})}
            },
                                                 name)),
            cellsLegend({
                bonus: compareHas(answer, "a").bonus || compareHas(answer, "b").bonus,
                format: compareHas(answer, "a").format || compareHas(answer, "b").format
            }));
        domReplace(view.main, top, el("div", {class: "compare-top"}, compareScores(answer), compareMatrix(answer, set)),
            el("section", {},
                heading(title,
                    `${plural(answer.matched, "sample")}, the largest change first${
                        answer.matched > answer.rows.sample.length ? `; the first ${answer.rows.sample.length}` : ""}`,
                    filters),
                list.table),
            await compareRuns(a, b, runs, view));
        return {keys: tableKeys(() => list.table, list.toggle)};
    },
};
