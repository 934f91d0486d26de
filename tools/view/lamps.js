"use strict";
// The eight lamps: dark while all is well. Each says what it saw, and leads to its evidence.

const LAMP_RECENT = 600; // seconds for which an event keeps a lamp lit while the run goes on

function lampColumn(metrics, key) {
    return metrics[key] ? metrics[key].mean : [];
}

function lampLast(metrics, key) {
    const column = lampColumn(metrics, key);
    return meanOf(column.slice(-tenthOf(column)));
}

// The mean and the squared standard error of these steps.
function lampEstimate(values) {
    const known = values.filter(isNumber), mean = meanOf(known);
    const squares = known.reduce((sum, v) => sum + (v - mean) ** 2, 0);
    return {mean, error: known.length > 1 ? squares / (known.length - 1) / known.length : 0};
}

// The option of a stage as a number, null if it has none.
function settingNumber(run, stage, key) {
    const found = Object.entries(run.settings).find(([name]) => name === stage || name.startsWith(stage + "-"));
    const value = found && found[1][key] ? Number(found[1][key][0]) : NaN;
    return Number.isFinite(value) ? value : null;
}

function lampLearns(metrics) {
    const accuracy = lampColumn(metrics, "accuracy"), tenth = tenthOf(accuracy);
    if (meanOf(accuracy) === null) return {off: true, value: ABSENT, text: "no accuracy in any step"};
    const first = lampEstimate(accuracy.slice(0, tenth)), last = lampEstimate(accuracy.slice(-tenth));
    const worse = last.mean + 1.96 * Math.sqrt(first.error + last.error) < first.mean;
    const line = smoothed(accuracy, smoothingWidth(accuracy.length));
    let top = null, fall = 0, where = null;
    line.forEach((value, i) => {
        if (!isNumber(value)) return;
        top = top === null ? value : Math.max(top, value);
        if (top - value > fall) fall = top - value, where = metrics.step[i];
    });
    const fell = fall >= 0.15;
    return {
        lit: worse || fell,
        value: `${fixed(first.mean, 2)} → ${fixed(last.mean, 2)}`,
        text: fell ? `accuracy; it fell by ${fixed(fall, 2)} near step ${where}`
            : worse ? "accuracy, lower at the end"
                    : "accuracy, first and last tenth",
        to: fell ? ["/groups", {steps: `${Math.max(1, where - 4)}-${where + 4}`, where: "accuracy = 0"}]
                 : ["/groups", {where: "accuracy = 0"}]
    };
}

function lampSignal(metrics) {
    const none = lampLast(metrics, "no_signal");
    if (none === null) return {off: true, value: ABSENT, text: "no rewards"};
    return {
        lit: 1 - none < 0.5,
        value: percent(1 - none),
        to: ["/groups", {where: "group.std > 0", sort: "-step"}],
        text: `of groups teach; ${percent(lampLast(metrics, "all_correct"))} all right, ${
            percent(lampLast(metrics, "all_wrong"))} all wrong`
    };
}

function lampConsistency(run, metrics) {
    const right = lampLast(metrics, "accuracy");
    if (run.has.bonus && run.method === "care" && right) {
        const share = Math.min(1, lampLast(metrics, "bonus_rate") / right);
        return {
            lit: share < 0.9,
            value: percent(share, 1),
            text: "of right answers have the bonus",
            to: ["/groups", {where: "accuracy = 1 and bonus = 0"}]
        };
    }
    const judged = lampLast(metrics, "consistent"), probability = lampLast(metrics, "consistency"),
          value = judged ?? probability;
    if (value === null) return {off: true, value: ABSENT, text: "neither bonus nor judge"};
    return {
        lit: value < 0.9,
        value: judged === null ? fixed(value, 2) : percent(value, 1),
        text: judged === null ? "mean probability that thinking supports the answer"
                              : "of judged completions are consistent",
        to: ["/groups", {where: "verdict = 0"}]
    };
}

function lampForm(metrics) {
    const form = lampLast(metrics, "format"), length = lampLast(metrics, "completion_length"),
          cut = lampLast(metrics, "truncated");
    if (form === null && length === null) return {off: true, value: ABSENT, text: "no completions"};
    return {
        lit: form !== null && form < 0.95 || cut > 0.02,
        value: form === null ? fixed(length, 1) : percent(form, 1),
        text: `${form === null ? "" : "well-formed; "}${fixed(length, 1)} tokens; ${percent(cut)} truncated`,
        to: ["/groups", {where: "format = 0"}]
    };
}

function lampPolicy(run, metrics) {
    const entropy = lampColumn(metrics, "entropy"), now = lampLast(metrics, "entropy");
    if (now === null) return {off: true, value: ABSENT, text: "nothing is trained"};
    const norm = maxOf(metrics.grad_norm ? metrics.grad_norm.max : []), clip = settingNumber(run, "optim", "clip_norm");
    const broken = metrics.grad_norm && metrics.grad_norm.last.some(v => v === null);
    return {
        lit: now < 0.01 || broken || clip > 0 && norm > 20 * clip,
        value: fixed(now, 3),
        to: ["/", {}, "learning"],
        text: `entropy, at first ${fixed(meanOf(entropy.slice(0, tenthOf(entropy))), 3)}; gradient norm ${
            broken ? "was not finite" : "≤ " + significant(norm, 2)}`
    };
}

function lampExactness(run, metrics) {
    const column = metrics.logprob_difference_max ? metrics.logprob_difference_max.max : [], largest = maxOf(column);
    const stale = settingNumber(run, "source", "max_staleness") > 0, title = stale ? "Off-policy" : "Exactness";
    if (largest === null) return {title, off: true, value: ABSENT, text: "no log-probabilities to compare"};
    const last = maxOf(column.slice(-tenthOf(column))), cpu = run.device === null || run.device === "cpu",
          mean = lampLast(metrics, "logprob_difference");
    if (stale)
        return {
            title,
            lit: last > 1,
            value: `${fixed(lampLast(metrics, "age_mean"), 1)} steps old`,
            to: ["/", {}, "learning"],
            text: `log p differed by up to ${significant(largest, 2)}, now ${significant(last, 2)}`
        };
    return {
        title,
        lit: cpu ? largest > 0 : mean > 5e-3,
        value: largest === 0 ? "0" : significant(cpu ? largest : mean, 2),
        to: ["/", {}, "learning"],
        text: largest === 0 ? "log p of sampler and trainer are equal"
                            : `${cpu ? "largest" : "mean"} difference of log p between sampler and trainer`
    };
}

// The stages by how busy their replicas are in the mean, the busiest first.
function busiestStages(run, live) {
    const busy = new Map(live.replicas.name.map((name, i) => [name, live.replicas.busy[i]]));
    return run.stages.map(stage => ({name: stage.name, busy: meanOf(stage.replicas.map(r => busy.get(r.name)))}))
        .filter(stage => isNumber(stage.busy))
        .sort((a, b) => b.busy - a.busy);
}

// Whether an event is so new that it still counts; after the end all do.
function eventCounts(live, event) {
    return live.state !== "running" || event.time > live.time - LAMP_RECENT;
}

function lampFlow(run, live) {
    if (!run.stages.length) return {off: true, value: ABSENT, text: "not a run"};
    const replicas = live.replicas, restarts = replicas.restarts.reduce((sum, n) => sum + (n || 0), 0);
    const recent =
        live.events.some(e => ["restarted", "disconnected", "slow"].includes(e.kind) && eventCounts(live, e));
    const slow = replicas.slow.filter(Boolean).length, silent = replicas.state.filter(s => s === "silent").length;
    const parts = [busiestStages(run, live).slice(0, 2).map(s => `${s.name} busy ${percent(s.busy)}`).join(", ")];
    if (restarts) parts.push(plural(restarts, "restart"));
    if (silent) parts.push(`${silent} silent`);
    if (slow) parts.push(`${slow} slow`);
    return {
        lit: recent || slow > 0 || silent > 0 || live.state !== "running" && restarts > 0,
        value: rateText(live.rate),
        text: parts.filter(Boolean).join("; ") || "no stage has reported",
        to: ["/trace", {}]
    };
}

function lampData(live, quarantine) {
    const count = live.quarantined || 0, reasons = quarantine.length;
    const recent = live.events.some(e => e.kind === "quarantined" && eventCounts(live, e)) && live.state === "running";
    return {
        lit: count > 0.005 * (live.done || 0) && count > 0 || recent,
        value: count ? `${fixed(count)} of ${fixed(live.done)}` : "0",
        text: count ? `${count === 1 ? "group is" : "groups are"} quarantined${
                          reasons ? ", for " + plural(reasons, "reason") : ""}`
                    : "groups are quarantined",
        to: ["/", {}, "quarantine"]
    };
}

function lampsDraw(run, live, metrics, quarantine) {
    const lamps = [
        {title: "Learns", ...lampLearns(metrics)}, {title: "Signal", ...lampSignal(metrics)},
        {title: "Consistency", ...lampConsistency(run, metrics)}, {title: "Form", ...lampForm(metrics)},
        {title: "Policy", ...lampPolicy(run, metrics)}, lampExactness(run, metrics),
        {title: "Flow", ...lampFlow(run, live)}, {title: "Data", ...lampData(live, quarantine)}
    ];
    return el("div", {class: "lamps", id: "lamps"}, lamps.map(lamp => {
        const attributes = {class: `lamp${lamp.lit ? " lit" : ""}${lamp.off ? " off" : ""}`};
        const inside = [
            el("span", {class: "name"},
                sign(lamp.off      ? "off"
                        : lamp.lit ? "warn"
                                   : "ok"),
                lamp.title,
                el("span", {class: "hear"},
                    lamp.off       ? ": no data"
                        : lamp.lit ? ": look"
                                   : ": well")),
            el("span", {class: "value"}, lamp.value), el("span", {}, lamp.text)
        ];
        return lamp.to && !lamp.off ? link(lamp.to[0], lamp.to[1], {...attributes, anchor: lamp.to[2]}, inside)
                                    : el("div", attributes, inside);
    }));
}
