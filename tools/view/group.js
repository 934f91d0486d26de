"use strict";
// One group: what the model saw, and all that it wrote, so that the eye lands where the completions part.

const GROUP_TILE = 146;  // width of a frame in the list
const GROUP_CUT = 20000; // UTF-16 units of a text that are shown at first
const GROUP_FRAMES = 64; // frames that are shown at first
const GROUP_SHADES = ["logprob", "reference", "none"], GROUP_LAYOUTS = ["below", "beside"],
      GROUP_FADES = ["fade", "alike"];

// ---- completions ----

// The completions, best first, equal ones together: [{members: [indices], text, …}].
function groupCompletions(answer) {
    const group = answer.group, rewards = group.rewards || {}, scores = group.scores || {},
          consistency = group.consistency || {}, reference = group.reference || {};
    const at = (column, i) => column && column[i] !== undefined ? column[i] : null;
    const all = (group.completions || []).map((completion, i) => ({
        members: [i],
        text: completion.text ?? "",
        finish: completion.finish ?? null,
        tokens: answer.lengths[i],
        cuts: answer.cuts[i],
        ids: new Map(answer.ids[i] || []),
        logprobs: completion.logprobs || null,
        reference: at(reference.logprobs, i),
        mark: answer.marks[i] ?? null,
        accuracy: at(rewards.accuracy || scores.accuracy, i),
        format: at(rewards.format || scores.formatted, i),
        bonus: at(rewards.bonus, i),
        length: at(rewards.length, i),
        consistency: at(rewards.consistency, i),
        total: at(rewards.total, i),
        advantage: at(group.advantages, i),
        likelihood: at(reference.answer_probability, i),
        generated: at(reference.generated, i),
        chosen: answer.chosen[i] ?? null,
        verdict: at(consistency.verdict, i),
        probability: at(consistency.probability, i),
        reason: at(consistency.reason, i),
    }));
    const together = new Map();
    for (const one of all) {
        const key = JSON.stringify([one.text, one.tokens, one.finish, one.total, one.advantage]);
        if (together.has(key))
            together.get(key).members.push(one.members[0]);
        else
            together.set(key, one);
    }
    const rank = one => one.total ?? one.accuracy ?? -Infinity;
    return [...together.values()].sort(
        (a, b) => rank(b) - rank(a) || (b.likelihood ?? 0) - (a.likelihood ?? 0) || a.members[0] - b.members[0]);
}

// How much of the text an earlier completion begins with as well: its longest common beginning with any of them.
function groupShared(completions) {
    return completions.map((one, i) => {
        let most = 0;
        for (const other of completions.slice(0, i)) {
            let n = 0;
            while (n < one.text.length && one.text[n] === other.text[n]) n++;
            most = Math.max(most, wholeLength(one.text, n));
        }
        return most;
    });
}

// The spans of tags and of the answer in a text: [[from, to, class]], in order.
function groupSpans(text) {
    const spans = [];
    for (const match of text.matchAll(/<\/?[a-z]{1,20}>/g)) {
        const before = spans[spans.length - 1];
        if (match[0] === "</answer>" && before && before[3] === "<answer>" && before[1] < match.index)
            spans.push([before[1], match.index, "chosen"]);
        spans.push([match.index, match.index + match[0].length, "tag", match[0]]);
        if (spans.length > 2000) break;
    }
    return spans;
}

// How strongly a token is shaded: [0 to 1, the colour's name].
function groupShade(one, i, shade) {
    const value = one.logprobs ? one.logprobs[i] : null, other = one.reference ? one.reference[i] : null;
    if (shade === "logprob" && isNumber(value)) return [Math.min(1, -value / 4), "unlikely"];
    if (shade === "reference" && isNumber(value) && isNumber(other))
        return [Math.min(1, Math.abs(value - other) / 2), value < other ? "unlikely" : "likely"];
    return [0, "unlikely"];
}

// A text with its tokens. say(line, element) is called with a token's numbers.
function groupText(one, shared, shade, say) {
    const body = el("div",
        {class: "answer", tabindex: "0", "aria-label": "text of completion " + one.members.map(i => i + 1).join(", ")});
    const spans = groupSpans(one.text);
    const fill = most => {
        body.replaceChildren();
        let span = 0;
        // Appends text from..to, cut where a tag, the answer or the shared beginning ends.
        const append = (parent, from, to, strong) => {
            while (from < to) {
                while (span < spans.length && spans[span][1] <= from) span++;
                const now = span < spans.length && spans[span][0] <= from ? spans[span] : null;
                let end = Math.min(to, now ? now[1] : span < spans.length ? spans[span][0] : to);
                if (from < shared && shared < end) end = shared;
                const names =
                    [now ? now[2] : "", from < shared ? "shared" : "", strong ? "strong" : ""].filter(Boolean).join(
                        " ");
                const nodes = textNodes(one.text.slice(from, end));
                parent.append(...(names ? [el("span", {class: names}, nodes)] : nodes));
                from = end;
            }
        };
        const end = wholeLength(one.text, most);
        if (!one.cuts) {
            append(body, 0, end, false);
        } else {
            let from = 0;
            for (let i = 0; i < one.cuts.length && (from < end || one.text.length <= most); i++) {
                const [strength, tone] = groupShade(one, i, shade), to = one.cuts[i], strong = strength > 0.18;
                const token = el("span", {class: "token" + (strong ? " strong" : ""), "data-token": i});
                if (strength > 0.02)
                    token.style.setProperty(
                        "background-color", `rgba(var(--${tone}), ${(strength * 0.85).toFixed(2)})`);
                if (to > from)
                    append(token, from, to, strong);
                else
                    token.append(el("span", {class: "odd"}, groupOddToken(one, i)));
                body.append(token);
                from = Math.max(from, to);
            }
            if (from < end) append(body, from, end, false);
        }
        if (end < one.text.length)
            body.append(" … ",
                el("button", {type: "button", class: "icon", on: {click: () => fill(Infinity)}},
                    `show all ${fixed(one.text.length)} characters`));
        else if (!one.text.length && !one.cuts)
            body.append(el("span", {class: "note"}, "no text"));
        if (one.finish === "length" && end >= one.text.length)
            body.append(" ", el("span", {class: "odd"}, "truncated"));
    };
    fill(GROUP_CUT);
    groupTokenPointer(one, body, say);
    return body;
}

// A token that has no text of its own.
function groupOddToken(one, i) {
    return i === one.cuts.length - 1 && one.finish === "eos" ? "end" : `⟨${one.ids.get(i) ?? "?"}⟩`;
}

// The numbers of a token under the pointer, or after ← and →.
function groupTokenPointer(one, body, say) {
    const tell = element => {
        const i = Number(element.dataset.token), value = one.logprobs ? one.logprobs[i] : null,
              other = one.reference ? one.reference[i] : null;
        const from = i ? one.cuts[i - 1] : 0, whole = one.text.slice(from, one.cuts[i]),
              piece = whole.slice(0, wholeLength(whole, 60));
        const lines = [
            `token ${i + 1} of ${one.cuts.length}${
                one.cuts[i] > from ? `: “${visible(piece).replace(/\n/g, "⏎")}”`
                    : one.ids.has(i) ? `: id ${one.ids.get(i)}`
                                     : ""}`,
            isNumber(value) ? `log p ${fixed(value, 3)} (${percent(Math.exp(value), 1)})` : "no log-probability",
            isNumber(other) ? `reference ${fixed(other, 3)}, difference ${signed(value - other, 3)}` : ""
        ];
        say(lines.filter(Boolean).join("\n"), element);
    };
    let now = null;
    const choose = element => {
        if (now) now.classList.remove("now");
        now = element;
        if (!element) return tipHide();
        element.classList.add("now");
        element.scrollIntoView({block: "nearest", inline: "nearest"});
        tell(element);
    };
    body.addEventListener("pointermove", event => {
        const token = event.target.closest(".token");
        if (token)
            tell(token);
        else
            tipHide();
    });
    body.addEventListener("pointerleave", tipHide);
    body.addEventListener("keydown", event => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        const tokens = body.querySelectorAll(".token");
        if (!tokens.length) return;
        const i = now && body.contains(now) ? Number(now.dataset.token) + (event.key === "ArrowRight" ? 1 : -1) : 0;
        choose(tokens[Math.max(0, Math.min(tokens.length - 1, i))]);
        event.preventDefault();
    });
    body.addEventListener("blur", () => choose(null));
}

// A bar on a scale from low to high, from zero to the value.
function groupMeter(name, value, low, high, digits, text) {
    const x = v => high > low ? 100 * (Math.max(low, Math.min(high, v)) - low) / (high - low) : 0;
    const drawing = svg("svg", {viewBox: "0 0 100 9", preserveAspectRatio: "none", "aria-hidden": "true"},
        svg("rect", {class: "track", x: 0, y: 3.5, width: 100, height: 2}));
    if (isNumber(value))
        drawing.append(svg(
            "rect", {class: "value", x: Math.min(x(0), x(value)), y: 1, width: Math.abs(x(value) - x(0)), height: 7}));
    if (low < 0)
        drawing.append(
            svg("line", {class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 9, "vector-effect": "non-scaling-stroke"}));
    return el("div", {class: "meter"}, el("span", {}, name), drawing,
        el("b", {}, text ?? (isNumber(value) && low < 0 ? signed(value, digits) : fixed(value, digits))));
}

// The numbers of completions, neighbours as a range: #1–3 #5.
function groupNumbers(members) {
    const runs = [];
    for (const i of [...members].sort((a, b) => a - b)) {
        const last = runs[runs.length - 1];
        if (last && last[1] === i - 1)
            last[1] = i;
        else
            runs.push([i, i]);
    }
    return runs.map(([from, to]) => from === to ? `#${from + 1}` : `#${from + 1}–${to + 1}`).join(" ");
}

function groupCard(one, shared, shade, scale, say) {
    const right = one.accuracy === 1,
          word = one.accuracy === null               ? "not scored"
        : right                                      ? "right"
        : isNumber(one.accuracy) && one.accuracy > 0 ? `accuracy ${fixed(one.accuracy, 2)}`
                                                     : "wrong";
    const parts =
        [
            ["acc", one.accuracy, 0], ["fmt", one.format, 0], ["bonus", one.bonus, 1], ["len", one.length, 1],
            ["cons", one.consistency, 2]
        ].filter(p => p[1] !== null)
            .map(([name, value, digits]) =>
                     `${name} ${fixed(value, Number.isInteger(value) && digits < 2 ? digits : 2)}`)
            .join(" ");
    const kind = one.accuracy === null ? "" : right ? " right" : " wrong";
    const judged = one.verdict !== null || one.probability !== null || one.reason !== null;
    return el("article", {class: "card" + kind},
        el("div", {class: "scores"},
            el("div", {class: "who"}, word + (one.members.length > 1 ? ` × ${one.members.length}` : ""),
                el("span", {}, groupNumbers(one.members))),
            groupMeter("reward", one.total, Math.min(0, scale.low), scale.high, 2),
            groupMeter("advantage", one.advantage, -scale.advantage, scale.advantage, 2),
            groupMeter("likelihood", one.likelihood, 0, 1, 2),
            el("div", {class: "parts"}, el("span", {}, parts),
                el("span", {}, isNumber(one.tokens) ? plural(one.tokens, "token") : ""))),
        el("div", {class: "body"}, groupText(one, shared, shade, say),
            one.generated !== null ? el("p", {class: "reason"}, "the reference wrote: ", textNodes(one.generated, 500))
                                   : null,
            judged ? el("p", {class: "reason"}, one.verdict === null ? null : [sign(one.verdict ? "ok" : "warn"), " "],
                         one.probability === null ? "judge: " : `supported with ${percent(one.probability)}: `,
                         one.reason === null ? (one.verdict === null ? ABSENT
                                                       : one.verdict ? "consistent"
                                                                     : "contradicts")
                                             : textNodes(one.reason, 500))
                   : null));
}

// ---- beside the completions ----

function groupMedia(answer) {
    const media = answer.group.media || [];
    if (!media.length) return el("p", {class: "empty"}, "No frames: no stage has decoded its media.");
    return media.map((medium, m) => {
        const known = answer.media[m] || {available: false, why: null}, name = groupMediaName(answer.group, m);
        const about = el("p", {class: "note"}, name ? [textNodes(name, 80), ": "] : "",
            medium.kind === "image" ? `an image of ${medium.width} × ${medium.height}`
                                    : `${plural(medium.frames, "frame")} of ${medium.width} × ${medium.height}`,
            known.available ? ", as the model saw them" : "");
        if (!known.available)
            return el("div", {},
                el("p", {class: "empty"}, sign("off"), " The frames are not here",
                    known.why ? `: ${visible(known.why)}.` : "."),
                about);
        const shown = Math.min(medium.frames, GROUP_FRAMES), {width, height} = groupFrameSize(medium, GROUP_TILE);
        const figures = Array.from({length: shown}, (_, n) => {
            const address = apiFrame(medium.key, n), time = groupFrameTime(medium, n);
            return el("figure", {},
                address ? el("button", {
                    type: "button",
                    id: `frame-${m}-${n}`,
                    title: "enlarge",
                    on: {click: () => groupFrameShow(medium, n, shown)}
                },
                              el("img", {src: address, width, height, alt: `frame ${n + 1}`, loading: "lazy"}))
                        : el("p", {class: "empty"}, "not in this file"),
                time ? el("figcaption", {}, time) : null);
        });
        return el("div", {}, el("div", {class: medium.width > GROUP_TILE ? "frames small" : "frames"}, figures),
            medium.frames > GROUP_FRAMES ? el("p", {class: "note"}, `the first ${GROUP_FRAMES}`) : null, about);
    });
}

function groupFrameTime(medium, n) {
    const time = medium.timestamps ? medium.timestamps[n] : null;
    return isNumber(time) ? fixed(time, 2) + " s" : "";
}

// The size of a frame that may be `most` wide: a whole multiple of its own, or less where it is larger.
function groupFrameSize(medium, most, tall = Infinity) {
    const fits = Math.min(most / medium.width, tall / medium.height), times = fits >= 1 ? Math.floor(fits) : fits;
    return {width: Math.round(medium.width * times), height: Math.round(medium.height * times)};
}

// A frame as large as the window allows. ← and → lead to the ones beside it.
function groupFrameShow(medium, n, count) {
    const dialog = document.getElementById("frame");
    const {width, height} = groupFrameSize(medium, innerWidth - 80, innerHeight - 140);
    const draw = to => {
        n = to;
        const focused =
            dialog.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
        const step = (by, text, name) => el("button", {
            type: "button",
            class: "icon",
            "aria-label": name,
            disabled: n + by < 0 || n + by >= count,
            on: {click: () => draw(n + by)}
        },
            text);
        const address = apiFrame(medium.key, n);
        domReplace(dialog,
            address ? el("img", {src: address, width, height, alt: `frame ${n + 1}`,
                            class: width < medium.width ? "reduced" : null})
                    : el("p", {class: "empty"}, "not in this file"),
            el("div", {class: "controls"}, step(-1, "◂", "frame before"),
                el("span", {}, `frame ${n + 1} of ${medium.frames}`, groupFrameTime(medium, n) ? ", " : "",
                    groupFrameTime(medium, n)),
                step(1, "▸", "frame after"),
                el("button", {type: "button", class: "icon close", on: {click: () => dialog.close()}}, "close")));
        if (focused)
            (dialog.querySelector(`[aria-label="${focused}"]:enabled`) || dialog.querySelector(".close")).focus();
    };
    draw(n);
    dialog.showModal();
}

// The path of a medium, its last part.
function groupMediaName(group, m) {
    const parts = (group.prompt.messages || [])
                      .flatMap(message => Array.isArray(message.content) ? message.content : [])
                      .filter(part => part.video || part.image);
    const path = parts[m] ? parts[m].video || parts[m].image : null;
    return path ? path.split("/").pop() : null;
}

// The question without its options, which have a table of their own.
function groupQuestion(group) {
    const text = group.prompt.question ??
        (group.prompt.messages || [])
            .flatMap(m => typeof m.content === "string" ? [m.content] : m.content.filter(p => p.text).map(p => p.text))
            .join("\n");
    const options = group.prompt.options || [], cut = options.length ? text.indexOf("\nOptions:\n") : -1;
    return cut > 0 ? text.slice(0, cut) : text;
}

function groupQuestionDraw(group) {
    const text = groupQuestion(group);
    return el("p", {class: text.length > 300 ? "question long" : "question", dir: "auto"}, textNodes(text, GROUP_CUT));
}

function groupOptions(answer) {
    const options = answer.group.prompt.options || [], letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    if (!options.length)
        return el("p", {dir: "auto"}, "answer: ", el("b", {}, textNodes(answer.group.prompt.solution, 200)));
    const counts = new Map(), total = answer.chosen.length || 1;
    for (const letter of answer.chosen) counts.set(letter, (counts.get(letter) || 0) + 1);
    const accuracy = (answer.group.rewards || answer.group.scores || {}).accuracy || [];
    const named =
              answer.chosen.filter((letter, i) => letter !== null && letter === answer.solution && accuracy[i] === 0)
                  .length,
          none = counts.get(null) || 0;
    return el("div", {}, el("table", {class: "options"}, el("tbody", {}, options.map((option, i) => {
        const letter = letters[i], right = letter === answer.solution, count = counts.get(letter) || 0;
        return el("tr", {class: right ? "right" : "wrong"}, el("td", {}, letter),
            el("td", {dir: "auto"}, textNodes(option, 300), right ? " ✓" : ""),
            el("td", {}, el("span", {class: "bar"}, el("span", {css: {width: `${count / total * 100}%`}}))),
            el("td", {class: "number"}, answer.chosen.length ? String(count) : ""));
    }))),
        none ? el("p", {class: "note"}, `${none === 1 ? "1 completion names" : none + " completions name"} no option`)
             : null,
        named ? el("p", {class: "bad"}, sign("warn"),
                    ` ${named === 1 ? "1 completion names" : named + " completions name"} the right option, yet ${
                        named === 1 ? "counts" : "count"} as wrong`)
              : null);
}

function groupSide(answer, query) {
    const group = answer.group, reference = group.reference, waits = Object.entries(answer.waits || {});
    const pair = (name, ...value) => [el("dt", {}, name), el("dd", {}, value)];
    const same = answer.same || [];
    return [el("aside", {class: "side"}, el("div", {class: "media"}, groupMedia(answer)),
        el("div", {}, groupQuestionDraw(group), groupOptions(answer)),
        same.length > 1
            ? el("div", {}, el("h3", {}, "The same sample"),
                  el("ul", {class: "same"},
                      same.map(
                          other => el("li", {},
                              other.id === group.id
                                  ? el("b", {}, isNumber(other.step) ? `step ${other.step}` : textNodes(other.id, 20))
                                                                     : groupLink(other.id, query, {},
                                        isNumber(other.step) ? `step ${other.step}` : textNodes(other.id, 20)),
                              cellsDraw(other.marks, other.marks.length, groupHas(group)), el("span", {}, fixed(other.reward, 2))))))
                                               : null),
        el("aside", {class: "facts"}, el("dl", {class: "pairs"},
                                               pair("sample", group.sample_id === undefined ? ABSENT : textNodes(group.sample_id, 600)),
            group.prompt.problem_type ? pair("type", textNodes(group.prompt.problem_type, 60)) : null,
            isNumber(answer.prompt_tokens) ? pair("prompt", plural(answer.prompt_tokens, "token")) : null,
            reference ? pair("reference", `version ${fixed(reference.version)}`) : null,
            group.consistency && group.consistency.judge ? pair("judge", textNodes(group.consistency.judge, 60)) : null,
                                               (group.media || [])
                                                   .map(m => pair("frame key", el("span", {title: m.key}, visible(m.key).slice(0, 12) + "…"))),
                                               waits.map(([stage, [waited, had]]) => pair(textNodes(stage, 40),
                                                             `${duration(had)}${isNumber(waited) ? `, after ${duration(waited)} of waiting` : ""                                   }`))))];
}

// ---- the page ----

// Buttons of which one is pressed. options: [[value, text, usable, why not]].
function groupTabs(name, value, options, set) {
    return el("span", {class: "tabs", role: "group", "aria-label": name},
        options.map(([option, text, usable = true, why = null]) => el("button", {
            type: "button",
            id: `${name}-${option}`,
            "aria-pressed": String(option === value),
            disabled: !usable,
            title: usable ? null : why,
            on: {click: () => set(option)}
        },
                        text)));
}

function groupRamp(shade) {
    const box = (tone, strength) => {
        const item = el("i", {});
        item.style.setProperty("background-color", `rgba(var(--${tone}), ${strength * 0.85})`);
        return item;
    };
    if (shade === "logprob")
        return el("span", {class: "ramp"}, "log p 0", [0, 0.25, 0.5, 0.75, 1].map(s => box("unlikely", s)), "−4");
    if (shade === "reference")
        return el("span", {class: "ramp"}, "less likely than in the reference", box("unlikely", 1),
            box("unlikely", 0.4), box("likely", 0), box("likely", 0.4), box("likely", 1), "more likely");
    return null;
}

const groupPage = {
    title: "Group",
    path: "/groups",
    async draw(view) {
        const id = decodeURIComponent(here.path.slice("/group/".length)), query = groupsQuery(here.params),
              of = here.params.of;
        const answer = await apiGet(groupPath(id), {of}, view.signal), group = answer.group;
        document.title = `${visible(id)} · ${document.title}`;
        const completions = groupCompletions(answer), has = key => completions.some(one => one[key]);
        const shadeable = has("cuts") && has("logprobs"), comparable = shadeable && has("reference");
        const why = !has("logprobs") ? "The run keeps no log-probabilities."
                                     : answer.why_no_cuts || "The tokens do not give the text.";
        const present = {
            shade: here.params.shade,
            layout: here.params.layout || "below",
            fade: here.params.fade || "fade"
        };
        if (!GROUP_SHADES.includes(present.shade)) present.shade = "logprob";
        if (!shadeable)
            present.shade = "none";
        else if (present.shade === "reference" && !comparable)
            present.shade = "logprob";
        const totals = completions.map(one => one.total).filter(isNumber),
              advantages = completions.map(one => isNumber(one.advantage) ? Math.abs(one.advantage) : null);
        const scale = {
            low: minOf(totals) ?? 0,
            high: Math.max(maxOf(totals) ?? 1, 1e-9),
            advantage: Math.max(1, maxOf(advantages) ?? 1)
        };
        const set = change => go(here.path, {...here.params, ...change}, {replace: true});
        const say = (text, element) => {
            const box = element.getClientRects()[0] || element.getBoundingClientRect();
            tipShow(text, box.left, box.bottom - 10);
        };
        const siblings = groupNeighbours(id, query, answer, of);
        const step = (to, text, name) => el("button", {
            type: "button",
            class: "icon",
            id: name,
            "aria-label": name + " group",
            disabled: !to,
            on: {click: () => go("/group/" + encodeURIComponent(to), here.params)}
        },
            text);
        const mean = meanOf(totals.length ? (group.rewards || {}).total || [] : []),
              spread = groupDeviation((group.rewards || {}).total || []);
        const facts = [
            group.trained ? `step ${group.trained.step}` : "",
            group.sample_id !== undefined ? ["sample ", textNodes(group.sample_id, 40)] : "",
            mean === null ? "" : `reward ${fixed(mean, 2)} ± ${fixed(spread, 2)}`
        ].filter(Boolean);
        const silent = (group.advantages || []).length > 0 && group.advantages.every(a => a === 0);
        const shared = present.fade === "fade" ? groupShared(completions) : completions.map(() => 0);
        const controls = el("div", {class: "controls"}, "shade",
            groupTabs("shade", present.shade,
                [
                    ["logprob", "log-probability", shadeable, why],
                    [
                        "reference", "policy − reference", comparable,
                        shadeable
                            ? "The run keeps the reference's log-probability of the answers alone (logprobs: all keeps all)."
                            : why
                    ],
                    ["none", "none"]
                ],
                shade => set({shade})),
            "lay out",
            groupTabs("layout", present.layout, [["below", "below"], ["beside", "beside"]], layout => set({layout})),
            groupTabs("fade", present.fade, [["fade", "fade shared beginnings"], ["alike", "all alike"]],
                fade => set({fade})),
            groupRamp(present.shade), shadeable ? null : el("span", {}, `Not shaded: ${visible(why)}`));
        const quarantine = group.quarantine
            ? el("p", {class: "problem"}, sign("warn"), " quarantined by ", textNodes(group.quarantine.stage, 60), ": ",
                  textNodes(group.quarantine.reason, 500))
            : null;
        domReplace(view.main, el("div", {class: "title"}, el("h1", {}, textNodes(id, 120)), of ? el("span", {}, "of ", textNodes(of, 40)) : null, el("span", {}, facts.flatMap((fact, i) => i ? [", ", fact] : [fact])), answer.marks.length ? cellsDraw(answer.marks, answer.marks.length, groupHas(group)) : null, silent ? el("span", {}, "no signal: every advantage is 0") : null,
            el("span", {class: "right buttons"}, link("/groups", query, {class: "go", id: "to-list"}, "list"), step(siblings.previous, "◂", "previous"), siblings.place, step(siblings.next, "▸", "next"))),
        el("div", {class: "group-page"}, groupSide(answer, {...query, of}), el("div", {class: "texts-of"}, quarantine, completions.length ? [controls, el("div", {class: "cards " + present.layout}, completions.map((one, i) => groupCard(one, shared[i], present.shade, scale, say)))] : quarantine ? null : el("p", {class: "empty"}, "No completions yet."))));
        const cycle = (list, value, usable = () => true) => {
            for (let i = 1; i <= list.length; i++) {
                const next = list[(list.indexOf(value) + i) % list.length];
                if (usable(next)) return next;
            }
            return value;
        };
        const walk = to => () => to ? go("/group/" + encodeURIComponent(to), here.params) : false;
        return {
            keys: {
                s: () => set({
                    shade: cycle(GROUP_SHADES, present.shade,
                        shade => shade === "none" || shadeable && (shade !== "reference" || comparable))
                }),
                v: () => set({layout: cycle(GROUP_LAYOUTS, present.layout)}),
                f: () => set({fade: cycle(GROUP_FADES, present.fade)}),
                "[": walk(siblings.previous),
                "]": walk(siblings.next),
                Escape: () => go("/groups", query),
            }
        };
    },
};

// What its cells can show. It may be of another run than the page.
function groupHas(group) {
    const rewards = group.rewards || {}, scores = group.scores || {};
    return {bonus: Boolean(rewards.bonus), format: Boolean(rewards.format || scores.formatted)};
}

function groupDeviation(values) {
    const mean = meanOf(values);
    return values.length > 1 ? Math.sqrt(values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / (values.length - 1)) : 0;
}

// The groups before and after: of the last table if this group was in it, else of the store. `of`: the source, if not
// that of the page.
function groupNeighbours(id, query, answer, of) {
    const at = !of && groupsList.key === JSON.stringify(query) ? groupsList.ids.indexOf(id) : -1;
    if (at >= 0)
        return {
            previous: groupsList.ids[at - 1],
            next: groupsList.ids[at + 1],
            place: `${fixed(at + 1)} of ${fixed(groupsList.ids.length)} in the list`
        };
    return {
        previous: answer.previous,
        next: answer.next,
        place: isNumber(answer.position)
            ? `${fixed(answer.position)}${
                  !of && state.live && isNumber(state.live.done) ? " of " + fixed(state.live.done) : ""}`
            : ""
    };
}
