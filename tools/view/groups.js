"use strict";
// The groups for which a condition holds, as a table.

const groupsList = {
    key: null,
    ids: []
}; // the last table: what [ and ] of a group walk along
const GROUPS_KEYS = ["where", "text", "steps", "sort"];

// Columns: name of a row's figure, heading, how it is written, up to which width it is left out (2: phone, 3: tablet,
// 4: narrow window).
function groupsColumns(run) {
    const number = digits => value => fixed(value, digits);
    return [
        {key: "reward", title: "reward", text: number(3), has: run.has.rewards},
        {key: "std", title: "std", text: number(3), has: run.has.rewards},
        {key: "bonus", title: "bonus", text: number(2), has: run.has.bonus, hide: 3},
        {key: "length", title: "tokens", text: number(1), has: true, hide: 2},
        {
            key: "surprise",
            title: "surprise",
            text: number(3),
            has: run.has.logprobs,
            hide: 4,
            hint: "mean over the tokens of −log p"
        },
        {
            key: "likelihood",
            title: "likelihood",
            text: number(3),
            has: run.has.reference,
            hide: 2,
            hint: "of the answers under the reference, mean"
        },
        {key: "lowest", title: "lowest log p", text: number(2), has: run.has.logprobs, hide: 4},
        {key: "in_flight", title: "in flight", text: duration, has: run.has.rows, hide: 3},
    ].filter(column => column.has);
}

function groupsChips(run) {
    const size = run.group_size || 8, has = run.has;
    return [
        ["all wrong", "group.right = 0", has.rewards],
        ["mixed", `group.right > 0 and group.right < ${size}`, has.rewards],
        ["mismarked?", "group.named > 0", has.named, "names the right option, yet counts as wrong"],
        ["form broken", "format = 0", has.format],
        ["no bonus", "accuracy = 1 and bonus = 0", has.bonus, "right without bonus"],
        ["wrong, yet likely", "accuracy = 0 and answer_probability >= 0.9", has.reference && !api.file],
        ["contradicts", "verdict = 0", has.judge, "the judge finds that the thinking contradicts the answer"],
        ["truncated", "group.truncated > 0", has.rewards],
    ].filter(chip => chip[2]);
}

function groupsQuery(params) {
    return Object.fromEntries(GROUPS_KEYS.filter(key => params[key]).map(key => [key, params[key]]));
}

function groupsFilter(run, set, error) {
    const params = here.params;
    const field = (key, attributes) => el("input", {
        value: params[key] || "",
        "aria-label": key,
        spellcheck: "false",
        autocomplete: "off",
        ...attributes,
        on: {
            keydown: event => {
                if (event.key === "Enter") set({[key]: event.target.value.trim()});
            },
            change: event => {
                if (event.target.value.trim() !== (here.params[key] || "")) set({[key]: event.target.value.trim()});
            },
        }
    });
    const chips = groupsChips(run).map(([name, where, , hint]) => el("button", {
        type: "button",
        class: "chip",
        title: hint || where,
        id: "chip-" + name.replace(/\W+/g, "-"),
        "aria-pressed": String(params.where === where),
        on: {
            click: () => set({where: params.where === where ? "" : where}),
        }
    },
                                           name));
    const wrong = error && error.code === 400
        ? el("p", {class: "error", role: "alert"},
              error.column === null ? ""
                                    : el("span", {},
                                          visible((params.where || "").slice(0, 200)) + "\n" +
                                              " ".repeat(Math.min(200, error.column)) + "^ "),
              visible(error.message))
        : null;
    return el("div", {class: "filter"}, field("where", {
        type: "text",
        id: "where",
        class: "where",
        placeholder: "condition, such as  accuracy = 1 and format = 0",
        "aria-invalid": wrong ? "true" : null
    }),
        field("text", {type: "search", id: "text", class: "text", placeholder: "search in text"}),
        el("label", {}, "steps", field("steps", {type: "text", id: "steps", class: "steps", placeholder: "all"})),
        chips, wrong);
}

// Where the matches are. A drag keeps only these steps, as the field for them does.
function groupsHistogram(map, set) {
    if (!map || !map.step.length) return null;
    const totals = map.counts.map(row => row.reduce((a, b) => a + b, 0)), most = Math.max(1, maxOf(totals));
    const W = 1000, H = 40, width = W / map.step.length,
          drawing = svg("svg",
              {viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": "matches by step"});
    map.counts.forEach((row, i) => {
        const wrong = row[0] / most * (H - 4), rest = (totals[i] - row[0]) / most * (H - 4);
        const bar = (name, y, height) => drawing.append(
            svg("rect", {class: "part" + name, x: i * width, y, width: Math.max(0.5, width * 0.88), height}));
        if (wrong > 0) bar(" wrong", H - wrong, wrong);
        if (rest > 0) bar("", H - wrong - rest, rest);
    });
    const selection = svg("rect", {class: "selection", y: 0, height: H});
    drawing.append(selection);
    let began = null;
    const at = event => {
        const box = drawing.getBoundingClientRect();
        return Math.max(
            0, Math.min(map.step.length - 1, Math.floor((event.clientX - box.left) / box.width * map.step.length)));
    };
    drawing.addEventListener("pointerdown", event => {
        if (event.button !== 0) return;
        began = at(event);
        drawing.setPointerCapture(event.pointerId);
    });
    drawing.addEventListener("pointermove", event => {
        const i = at(event);
        tipShow(`${map.first[i] === map.step[i] ? `step ${map.step[i]}` : `steps ${map.first[i]} to ${map.step[i]}`}: ${
                    plural(totals[i], "group")}`,
            event.clientX, event.clientY);
        if (began !== null)
            domFill(selection, {x: Math.min(began, i) * width, width: (Math.abs(i - began) + 1) * width}, []);
    });
    drawing.addEventListener("pointerleave", tipHide);
    drawing.addEventListener("pointerup", event => {
        if (began === null) return;
        const one = Math.min(began, at(event)), two = Math.max(began, at(event));
        began = null;
        set({steps: `${map.first[one]}-${map.step[two]}`});
    });
    return el("div", {class: "histogram"}, drawing,
        el("div", {class: "ends"}, el("span", {}, fixed(map.first[0])),
            el("span", {class: "hint"}, "drag: only these steps"),
            el("span", {}, fixed(map.step[map.step.length - 1]))));
}

function groupsTable(run, answer, params, set) {
    const rows = answer.rows, columns = groupsColumns(run), sort = params.sort || "number",
          key = sort.replace(/^-/, ""), down = sort.startsWith("-");
    const head = (name, title, attributes, hint) =>
        el("th", {scope: "col", ...attributes, "aria-sort": key === name ? (down ? "descending" : "ascending") : null},
            el("button", {
                type: "button",
                title: hint || `sort by ${title}`,
                id: "sort-" + name,
                on: {
                    click: () => set({
                        sort: key === name                         ? (down ? name : "-" + name)
                            : name === "step" || name === "number" ? name
                                                                   : "-" + name
                    })
                }
            },
                title));
    const hidden = column => `number${column.hide ? " column-" + column.hide : ""}`;
    return el("table", {id: "table"},
        el("thead", {},
            el("tr", {}, head("number", "group", {}), head("step", "step", {class: "number"}),
                head("sample", "sample", {class: "column-2"}), el("th", {scope: "col", class: "column-2"}, "question"),
                el("th", {scope: "col"}, "completions"),
                columns.map(c => head(c.key, c.title, {class: hidden(c)}, c.hint)))),
        el("tbody", {},
            rows.id.map(
                (id, i) => el("tr", {
                    "data-id": id,
                    on: {
                        click: event => {
                            if (!event.target.closest("a") && !String(getSelection()))
                                go("/group/" + encodeURIComponent(id), groupsQuery(params));
                        }
                    }
                },
                    el("td", {class: "mono"}, groupLink(id, groupsQuery(params), {})),
                    el("td", {class: "number"}, fixed(rows.step[i])),
                    el("td",
                        {class: "sample column-2", title: rows.sample[i] === null ? null : visible(rows.sample[i])},
                        rows.sample[i] === null ? ABSENT : textNodes(rows.sample[i], 60)),
                    el("td", {class: "cut column-2", dir: "auto"},
                        rows.question[i] === null ? ABSENT : textNodes(rows.question[i], 120)),
                    el("td", {},
                        rows.state[i] === "quarantined" ? el("span", {class: "note"}, sign("off"), " quarantined")
                                                        : cellsDraw(rows.marks[i], rows.count[i])),
                    columns.map(c => el("td", {class: hidden(c)}, c.text(rows[c.key][i])))))));
}

// The keys j, k and Enter for the rows of a table. open(row) is called with Enter.
function tableKeys(table, open) {
    const rows = () => [...table().querySelectorAll("tbody > tr[data-id]")];
    const chosen = () => rows().findIndex(row => row.getAttribute("aria-selected") === "true");
    const move = by => () => {
        const list = rows(), now = chosen(), next = Math.max(0, Math.min(list.length - 1, now < 0 ? 0 : now + by));
        if (!list.length) return;
        if (now >= 0) list[now].removeAttribute("aria-selected");
        list[next].setAttribute("aria-selected", "true");
        list[next].scrollIntoView({block: "nearest"});
    };
    return {
        j: move(1),
        k: move(-1),
        ArrowDown: () => chosen() < 0 ? false : move(1)(),
        ArrowUp: () => chosen() < 0 ? false : move(-1)(),
        Enter: event => {
            const now = chosen();
            if (now < 0 || event.target.closest("a, button, summary")) return false;
            open(rows()[now]);
        }
    };
}

const groupsPage = {
    title: "Groups",
    path: "/groups",
    async draw(view) {
        const run = await runAsk(view.signal), params = here.params, query = groupsQuery(params);
        const set = change => go("/groups", {...query, ...change}, {replace: true});
        const before = Number(params.before) || 0; // rows before these
        const ask = () => Promise.all([
            apiGet("/api/groups", {...query, limit: 200, after: params.after}, view.signal),
            params.text
                ? null
                : apiGet("/api/map", {where: params.where, columns: innerWidth < 820 ? 120 : 400}, view.signal)
        ]);
        let answer = null, map = null, error = null;
        try {
            [answer, map] = await ask();
        } catch (failed) {
            if (!(failed instanceof ApiError) || failed.code !== 400) throw failed;
            error = failed;
        }
        const top = groupsFilter(run, set, error);
        if (error) {
            domReplace(view.main, top, el("p", {class: "empty"}, "The condition cannot be read."));
            return {};
        }
        const count = el("b", {id: "matched"}), note = el("small", {}), body = el("div", {class: "panel"}),
              foot = el("div", {class: "more-rows"}), histogram = el("div", {}, groupsHistogram(map, set));
        const say = () => {
            count.textContent = answer.matched === answer.total
                ? plural(answer.total, "group")
                : `${fixed(answer.matched)} of ${plural(answer.total, "group")}`;
            note.textContent = [
                answer.exact ? "a condition holds for a group if it holds for one of its completions"
                             : `${fixed(answer.scanned)} were looked at so far`,
                answer.missing.length ? `no group has ${answer.missing.join(", ")}` : ""
            ].filter(Boolean).join("; ");
        };
        const rows = () => {
            groupsList.key = JSON.stringify(query);
            groupsList.ids = answer.rows.id;
            domReplace(body,
                answer.rows.id.length
                    ? groupsTable(run, answer, params, set)
                    : el("p", {class: "empty"}, answer.total ? "No group matches." : "There are no groups yet."));
            domReplace(foot,
                answer.matched > answer.rows.id.length && answer.rows.id.length && answer.exact
                    ? `${fixed(before + 1)} to ${fixed(before + answer.rows.id.length)} of ${fixed(answer.matched)}`
                    : null,
                params.after ? link("/groups", query, {class: "go", id: "first-rows"}, "from the first") : null,
                answer.cursor && answer.exact
                    ? link("/groups", {...query, after: answer.cursor, before: before + answer.rows.id.length},
                          {class: "go", id: "next-rows"}, "the next ones")
                    : null);
        };
        say();
        domReplace(view.main, top, el("h2", {}, count, note, el("span", {class: "right"}, cellsLegend())),
            histogram, body, foot);
        rows();
        if (!answer.exact)
            groupsContinue(view, query, ask, answer, (found, matches) => {
                const drawn = !found.exact && found.rows.id.length === answer.rows.id.length;
                answer = found;
                say();
                if (!drawn) rows();
                if (matches) domReplace(histogram, groupsHistogram(matches, set));
            });
        return {keys: tableKeys(() => body, row => go("/group/" + encodeURIComponent(row.dataset.id), query))};
    },
};

// Goes on looking while groups are read one by one, and shows what is found on the way. In the end the rows and the map
// are asked for again: only then the rows are in their order, and the map's request has found some, too.
async function groupsContinue(view, query, ask, answer, found) {
    try {
        while (!answer.exact && answer.cursor) {
            const more = await apiGet("/api/groups", {...query, limit: 200, after: answer.cursor}, view.signal);
            const rows = Object.fromEntries(Object.keys(more.rows).map(
                name => [name, [...answer.rows[name], ...more.rows[name]].slice(0, 200)]));
            answer = {...more, rows};
            found(answer);
        }
        found(...await ask());
    } catch (error) {
        if (error.name === "AbortError") return;
        view.main.prepend(problem(error));
        if (!(error instanceof ApiError)) throw error;
    }
}
