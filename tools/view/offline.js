"use strict";
// What a server would answer, computed from the data in this file: filters, sorts, counts and zooms.

function offlineRoute(path) {
    const found = api.file.routes[path];
    if (found === undefined) throw new ApiError("This file does not have it.", 404, null);
    return found;
}

function offlineAnswer(path, parameters) {
    if (path === "/api/groups") return offlineGroups(parameters);
    if (path === "/api/map") return offlineMap(parameters);
    if (path === "/api/metrics") return offlineMetrics(parameters);
    if (path === "/api/trace") return offlineTrace(parameters);
    if (path === "/api/compare") return offlineCompare(parameters);
    if (path.startsWith("/api/group/")) {
        const id = decodeURIComponent(path.slice("/api/group/".length));
        if (parameters.of && parameters.of !== api.file.routes["/api/run"].name)
            throw new ApiError("This file has the texts of its first run alone.", 404, null);
        const found = api.file.routes["/api/group/" + id];
        if (!found)
            throw new ApiError("This file has the figures of this group, but neither texts nor frames.", 404, null);
        return found;
    }
    return offlineRoute(path);
}

// ---- conditions ----

const OFFLINE_MARKS = {
    accuracy: 1,
    format: 2,
    bonus: 4,
    verdict: 8
}; // bits; verdict is 0 where its bit is set
const OFFLINE_FIGURES = [
    "right", "count", "std", "reward", "length", "surprise", "likelihood", "lowest", "named", "truncated", "step",
    "number"
];
const OFFLINE_COMPARE = {
    "=": (a, b) => a === b,
    "!=": (a, b) => a !== b,
    "<": (a, b) => a < b,
    "<=": (a, b) => a <= b,
    ">": (a, b) => a > b,
    ">=": (a, b) => a >= b,
};

// Parses FIELD OP NUMBER joined by and, or and parentheses. Returns a function of a row and the index of a completion.
function offlineCondition(text) {
    const tokens = [...text.matchAll(/\(|\)|[=!<>]+|[^\s()=!<>]+/g)];
    let at = 0;
    const peek = () => at < tokens.length ? tokens[at][0] : null;
    const refuse = (what,
        token = at) => { throw new ApiError(what, 400, token < tokens.length ? tokens[token].index : text.length); };
    const joined = (word, inner, join) => {
        let left = inner();
        while (peek() === word) {
            at++;
            const one = left, two = inner();
            left = (row, i) => join(one(row, i), () => two(row, i));
        }
        return left;
    };
    const either = () => joined("or", both, (a, b) => a || b());
    const both = () => joined("and", comparison, (a, b) => a && b());
    const comparison = () => {
        const field = peek();
        if (field === null) refuse("expected FIELD OP VALUE, as in accuracy = 1");
        at++;
        if (field === "(") {
            const inner = either();
            if (peek() !== ")") refuse("expected )");
            at++;
            return inner;
        }
        const figure = field.startsWith("group.") ? field.slice(6) : null;
        if (figure ? !OFFLINE_FIGURES.includes(figure) : !(field in OFFLINE_MARKS))
            refuse(`this file cannot compare ${field}: it knows ${Object.keys(OFFLINE_MARKS).join(", ")} and group.${
                       OFFLINE_FIGURES.join(", .")}`,
                at - 1);
        const compare = Object.hasOwn(OFFLINE_COMPARE, peek() ?? "")
            ? OFFLINE_COMPARE[peek()]
            : refuse(`expected =, !=, <, <=, > or >= behind ${field}`);
        at++;
        const value = Number(peek());
        if (peek() === null || !Number.isFinite(value)) refuse(`${field} is compared with a number`);
        at++;
        if (figure) return row => isNumber(row[figure]) && compare(row[figure], value);
        const has = (mark, bit) => mark & bit ? 1 : 0;
        return (row, i) => {
            const mark = row.marks[i];
            if (!isNumber(mark)) return false;
            const bit = has(mark, OFFLINE_MARKS[field]);
            return compare(field === "verdict" ? 1 - bit : field === "bonus" && bit ? 0.5 : bit, value);
        };
    };
    const condition = either();
    if (at < tokens.length) refuse("expected and, or or the end");
    return condition;
}

function offlineRows() {
    if (!api.rows) {
        const columns = offlineRoute("/api/groups").rows, names = Object.keys(columns);
        api.rows = columns.number.map((_, i) => Object.fromEntries(names.map(name => [name, columns[name][i]])));
    }
    return api.rows;
}

function offlineMatches(parameters) {
    let rows = offlineRows();
    if (parameters.where) {
        const condition = offlineCondition(parameters.where);
        rows = rows.filter(row => condition(row, 0) || row.marks.some((_, i) => condition(row, i)));
    }
    if (parameters.steps) {
        const match = /^(\d*)-(\d*)$/.exec(parameters.steps);
        if (!match) throw new ApiError("steps: expected FIRST-LAST", 400, null);
        const first = Number(match[1] || 0), last = match[2] === "" ? Infinity : Number(match[2]);
        rows = rows.filter(row => row.step >= first && row.step <= last);
    }
    if (parameters.text) {
        const wanted = parameters.text.toLowerCase();
        const has = text => typeof text === "string" && text.toLowerCase().includes(wanted);
        rows = rows.filter(row => {
            const known = api.file.routes["/api/group/" + row.id];
            return has(row.question) || has(row.sample) || has(row.id) ||
                known && (known.group.completions || []).some(c => has(c.text));
        });
    }
    return rows;
}

function offlineGroups(parameters) {
    const rows = offlineMatches(parameters), all = offlineRoute("/api/groups");
    const order = parameters.sort || "number", key = order.replace(/^-/, ""), down = order.startsWith("-") ? -1 : 1;
    if (!(key in all.rows)) throw new ApiError(`sort: no column has the name ${key}`, 400, null);
    const sorted = [...rows].sort((a, b) => {
        const x = a[key], y = b[key];
        if (x === null || y === null) return (x === null) - (y === null) || a.number - b.number;
        return (x < y ? -down : x > y ? down : 0) || a.number - b.number;
    });
    const limit = Number(parameters.limit ?? 200), after = Number(parameters.after || 0),
          page = sorted.slice(after, after + limit);
    return {
        total: all.total,
        matched: rows.length,
        exact: true,
        scanned: rows.length,
        missing: [],
        cursor: limit && after + limit < rows.length ? String(after + limit) : null,
        rows: Object.fromEntries(Object.keys(all.rows).map(name => [name, page.map(row => row[name])])),
    };
}

// Of rows with `step` and `first`, the indices of those in the asked span.
function offlineSpan(answer, parameters) {
    const from = Number(parameters.from ?? -Infinity), to = Number(parameters.to ?? Infinity);
    return answer.step.map((_, i) => i).filter(i => answer.step[i] >= from && answer.first[i] <= to);
}

function offlineMap(parameters) {
    const map = offlineRoute("/api/map"), kept = offlineSpan(map, parameters);
    let counts = map.counts;
    if (parameters.where) {
        // Of a group with another number of completions the share counts; all and none of them stay so.
        const share = row => Math.max(1, Math.min(map.size - 1, Math.round(row.right * map.size / row.count)));
        const cell = ({right, count}) => right === null ? map.size + 1
            : !right || count === map.size              ? right
            : right === count                           ? map.size
                                                        : share({right, count});
        counts = map.counts.map(row => row.map(() => 0));
        for (const row of offlineMatches({where: parameters.where})) {
            const i = map.step.findIndex((step, k) => row.step <= step && row.step >= map.first[k]);
            if (i >= 0) counts[i][cell(row)]++;
        }
    }
    return {
        size: map.size,
        first: kept.map(i => map.first[i]),
        step: kept.map(i => map.step[i]),
        counts: kept.map(i => counts[i])
    };
}

function offlineMetrics(parameters) {
    if (parameters.of && parameters.of !== api.file.routes["/api/run"].name)
        throw new ApiError("This file has the curves of its first run alone.", 404, null);
    const metrics = offlineRoute("/api/metrics"), kept = offlineSpan(metrics, parameters),
          pick = column => kept.map(i => column[i]);
    const answer = {};
    for (const [key, column] of Object.entries(metrics))
        answer[key] = Array.isArray(column)
            ? pick(column)
            : Object.fromEntries(Object.entries(column).map(([name, values]) => [name, pick(values)]));
    return answer;
}

function offlineCompare(parameters) {
    const all = offlineRoute("/api/compare");
    if (parameters.a !== all.a.name || parameters.b !== all.b.name)
        throw new ApiError(`This file compares ${all.a.name} and ${all.b.name} alone.`, 404, null);
    if (!parameters.cell) return all;
    const rows = all.rows, change = rows.change;
    const kept =
        rows.sample.map((_, i) => i)
            .filter(i => ({better: change[i] > 0, worse: change[i] < 0, alike: change[i] === 0})[parameters.cell] ??
                    `${rows.right_a[i]},${rows.right_b[i]}` === parameters.cell);
    return {
        ...all,
        matched: kept.length,
        rows: Object.fromEntries(Object.entries(rows).map(([name, column]) => [name, kept.map(i => column[i])]))
    };
}

// The span of the whole trace: bars and groups are picked, the figures of the stages are those of the bars.
function offlineTrace(parameters) {
    const all = offlineRoute("/api/trace");
    const from = Math.max(all.start, Number(parameters.from ?? all.start)),
          to = Math.min(all.end, Number(parameters.to ?? all.end));
    const pieces =
        all.busy.time.map((_, i) => i).filter(i => all.busy.time[i] + all.busy.width >= from && all.busy.time[i] <= to);
    const busy = {
        time: pieces.map(i => all.busy.time[i]),
        width: all.busy.width,
        share: all.busy.share.map(row => pieces.map(i => row[i]))
    };
    if (!all.bars) return {...all, from, to, busy};
    const inside = new Set(all.bars.number.filter((_, i) => all.bars.from[i] <= to && all.bars.to[i] >= from));
    const pick = columns => {
        const kept = columns.number.map((_, i) => i).filter(i => inside.has(columns.number[i]));
        return Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, kept.map(i => column[i])]));
    };
    const bars = pick(all.bars), groups = pick(all.groups),
          left = new Map(groups.number.map((number, i) => [number, groups.issued[i]]));
    const had = all.stages.name.map(() => []), waited = all.stages.name.map(() => []);
    for (const i of bars.number.map((_, k) => k).sort((a, b) => bars.from[a] - bars.from[b])) {
        had[bars.stage[i]].push(bars.to[i] - bars.from[i]);
        waited[bars.stage[i]].push(Math.max(0, bars.from[i] - left.get(bars.number[i])));
        left.set(bars.number[i], bars.to[i]);
    }
    const median = values => values.length ? [...values].sort((a, b) => a - b)[values.length >> 1] : null;
    const stages = {
        name: all.stages.name,
        groups: had.map(v => v.length),
        typical: had.map(median),
        slowest: had.map(maxOf),
        busy: all.stages.name.map((_, i) => meanOf(busy.share[i])),
        waited: waited.map(meanOf),
        had: had.map(meanOf),
    };
    return {...all, from, to, busy, stages, groups, bars};
}
