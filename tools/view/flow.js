"use strict";
// The picture of the dataflow, which is also the display of its state.

const FLOW_ROWS = 4;     // replicas of a stage that get a curve each; more are a bar each
const FLOW_LIMIT = 0.35; // busy share from which on the busiest stage is said to limit the rate

function flowDraw(run, live) {
    const replicas = live.replicas, index = new Map(replicas.name.map((name, i) => [name, i]));
    const busiest = busiestStages(run, live)[0], limiting = busiest && busiest.busy >= FLOW_LIMIT ? busiest.name : null;
    const stages = run.stages.map((stage, at) => {
        const members = stage.replicas.map(r => index.get(r.name)).filter(i => i !== undefined);
        const sum = column => members.length && members.some(i => isNumber(column[i]))
            ? members.reduce((total, i) => total + (column[i] || 0), 0)
            : null;
        const rate = rateText(sum(replicas.rate));
        const queue = sum(replicas.waiting), first = at === 0;
        return el("section", {class: `stage${stage.name === limiting ? " limits" : ""}`, "aria-label": stage.name},
            el("div", {class: "about"},
                el("div", {class: "name"},
                    el("b", {}, stage.name + (stage.replicas.length > 1 ? ` × ${stage.replicas.length}` : "")),
                    stage.name === limiting ? el("span", {class: "limit"}, "limits the rate") : null),
                el("div", {class: "rate"}, el("span", {}, el("b", {}, rate.split(" ")[0]), " ", rate.split(" ")[1] || ""),
                    el("span", {title: "groups done"}, fixed(sum(replicas.done))))),
            el("div", {class: "members"},
                first && isNumber(live.in_flight)
                    ? el("div", {class: "fill"}, el("b", {}, fixed(live.in_flight)),
                          ` in flight${run.in_flight_max ? ` of ${fixed(run.in_flight_max)} allowed` : ""}`,
                          el("div", {class: "note"}, members.length ? visible(replicas.state[members[0]]) : ""))
                                                         : null,
                first ? null
                    : stage.replicas.length > FLOW_ROWS
                    ? flowBars(members, live)
                    : stage.replicas.map(r => flowReplica(r, index.get(r.name), live, stage.replicas.length > 1))),
            at + 1 < run.stages.length
                ? el("span", {class: `queue${queue ? " some" : ""}`, title: "groups that wait for the next stage"},
                      fixed(queue))
                : null);
    });
    const flow = el("div", {class: "flow"}, stages);
    flow.style.setProperty("--stages", run.stages.length);
    return [flow, flowLoops(run, live)];
}

function flowTrouble(live, i) {
    return live.replicas.state[i] === "silent" || live.replicas.slow[i];
}

// A replica: busy share as a curve and a number, state, age of its oldest group against the typical time, restarts.
function flowReplica(replica, i, live, numbered) {
    if (i === undefined) return null;
    const columns = live.replicas, trouble = flowTrouble(live, i), history = live.history.busy.map(row => row[i]);
    const age = columns.oldest_age[i], typical = columns.typical[i];
    const times = isNumber(age) ? `${duration(age)} / ${duration(typical)}`
        : isNumber(typical) ? duration(typical)
                            : "";
    return link(here.path, {...here.params, log: replica.name}, {
        class: numbered ? "replica numbered" : "replica",
        title: `${replica.name}${replica.machine ? " on " + replica.machine : ""}: its log`,
        anchor: "log"
    },
        numbered ? el("span", {class: "number"}, replica.number) : null,
        history.length ? chartSpark(history) : flowBar(columns.busy[i]), el("b", {}, percent(columns.busy[i])),
        el("span", {class: "line"},
            el("span", {class: trouble ? "state bad" : "state"},
                columns.restarts[i] ? el("span", {class: "bad", title: plural(columns.restarts[i], "restart")},
                                          sign("restart"), String(columns.restarts[i]), " ")
                                    : null,
                trouble ? [sign("warn"), " "] : null, columns.slow[i] && columns.state[i] !== "silent" ? "slow: " : "",
                visible(columns.state[i])),
            el("span", {class: "times"}, times)));
}

function flowBar(share) {
    return el("span", {class: "bar"}, el("span", {css: {width: `${Math.min(100, (share || 0) * 100)}%`}}));
}

// Many replicas: a bar each, then how many are in which state.
function flowBars(members, live) {
    const states = new Map();
    for (const i of members) {
        const name = live.replicas.slow[i] && live.replicas.state[i] !== "silent" ? "slow" : live.replicas.state[i];
        states.set(name, (states.get(name) || 0) + 1);
    }
    const bad = name => name === "silent" || name === "slow";
    return el("div", {class: "many"},
        el("div", {class: "bars"},
            members.map(i => link(here.path, {...here.params, log: live.replicas.name[i]}, {
                class: flowTrouble(live, i) ? "bad" : "",
                anchor: "log",
                title: `${live.replicas.name[i]}: ${live.replicas.state[i]}, busy ${percent(live.replicas.busy[i])}`,
                "aria-label": live.replicas.name[i]
            },
                            el("span", {css: {height: `${Math.max(4, (live.replicas.busy[i] || 0) * 100)}%`}})))),
        el("div", {}, "busy ", el("b", {}, percent(meanOf(members.map(i => live.replicas.busy[i]))))),
        [...states].sort((a, b) => bad(b[0]) - bad(a[0]) || b[1] - a[1])
            .map(([name, count]) => el("div", {class: bad(name) ? "bad" : ""}, bad(name) ? [sign("warn"), " "] : null,
                     `${fixed(count)} ${visible(name)}`)));
}

// What goes back from the last stage: weights and trained groups.
function flowLoops(run, live) {
    const at = name => run.stages.findIndex(stage => stage.name === name || stage.name.startsWith(name + "-")),
          count = run.stages.length;
    const middle = i => (i + 0.5) / count * 100, last = count - 1, rollout = at("rollout");
    const loop = (first, lines, inset, text) => el("div", {
        class: "loop",
        css: {left: `${middle(first)}%`, right: `${100 - middle(last) + inset}%`, height: `${lines}px`}
    },
        el("span", {}, text));
    const done = `${run.has.trains ? "trained" : "done"}: ${fixed(live.done)}${
        isNumber(live.total) ? " of " + fixed(live.total)
                             : ""} groups${isNumber(live.step) ? ", step " + fixed(live.step) : ""}`;
    const weights = isNumber(live.policy) && run.has.trains
        ? `weights: policy ${fixed(live.policy)}${
              isNumber(live.reference) ? ", reference " + fixed(live.reference) : ""}`
        : null;
    return el("div", {class: "loops"}, weights && rollout >= 0 ? loop(rollout, 14, 1.5, weights) : null,
        count > 1 ? loop(0, 33, 0, done) : null);
}
