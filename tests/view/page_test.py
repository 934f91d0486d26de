#!/usr/bin/env python3
"""page_test.py: the page in a real browser, against the fixture server: every page at 1400 x 900 light and dark, at 820 and
390, and printed; every key; strings that must stay text; the page as one file. Exit 1 with one line per finding."""
import json, pathlib, sys, tempfile, time, urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
import browser, fake_server, fixture

GROUP = "/group/e0-000214"
PAGES = {"overview": "/", "groups": "/groups?where=group.named+%3E+0", "group": GROUP, "compare": "/compare?a=before&b=after", "trace": "/trace"}
SIZES = [(1400, 900, "light"), (1400, 900, "dark"), (820, 1100, "light"), (390, 844, "light")]

# Every visible text whose contrast with what is behind it is below 4.5, and what makes the page wider than the window.
CHECKS = r"""(() => {
    const found = [], canvas = document.createElement("canvas"), context = canvas.getContext("2d", {willReadFrequently: true});
    canvas.width = canvas.height = 1;
    const known = new Map(), parse = text => {
        if (!known.has(text)) {
            context.clearRect(0, 0, 1, 1);
            context.fillStyle = text;
            context.fillRect(0, 0, 1, 1);
            const d = context.getImageData(0, 0, 1, 1).data;
            known.set(text, [d[0], d[1], d[2], d[3] / 255]);
        }
        return known.get(text);
    };
    const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
    const light = c => c.slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (a, b) => { const x = light(a), y = light(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
    const grounds = new Map(), ground = element => {
        if (!element) return {back: [255, 255, 255, 1], opacity: 1};
        if (!grounds.has(element)) {
            const style = getComputedStyle(element), under = ground(element.parentElement);
            grounds.set(element, {back: over(parse(style.backgroundColor), under.back), opacity: under.opacity * Number(style.opacity)});
        }
        return grounds.get(element);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
    let texts = 0;
    for (let node; (node = walker.nextNode());) {
        const element = node.parentElement;
        if (!node.data.trim() || ["SCRIPT", "NOSCRIPT", "STYLE", "OPTION", "TITLE"].includes(element.tagName.toUpperCase())) continue;
        range.selectNodeContents(node);
        const box = range.getBoundingClientRect();
        if (!box.width || getComputedStyle(element).visibility === "hidden" || box.right < 0) continue;
        texts++;
        // What is behind it, from the ground up, and how opaque it is.
        const {back, opacity} = ground(element);
        const style = getComputedStyle(element), ink = element.namespaceURI.endsWith("svg") ? parse(style.fill) : parse(style.color);
        const value = ratio(over([ink[0], ink[1], ink[2], ink[3] * opacity], back), back);
        if (value < 4.5) found.push(`contrast ${value.toFixed(2)}: ${element.tagName}.${element.getAttribute("class")} "${node.data.trim().slice(0, 40)}"`);
    }
    if (texts < 15) found.push(`only ${texts} texts`);
    if (document.documentElement.scrollWidth > innerWidth) {
        const wide = [...document.querySelectorAll("main *, header *, footer *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 3);
        found.push(`sideways scrolling: ${document.documentElement.scrollWidth} of ${innerWidth}: ${wide.map(e => e.tagName + "." + e.getAttribute("class")).join(", ")}`);
    }
    for (const e of document.querySelectorAll(".lamp .value, .lamp > span, nav a, .stage .name b, .chart figcaption b, .chart figcaption em, h1, h2"))
        if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth) found.push(`cut: ${e.getAttribute("class")} "${e.textContent.slice(0, 40)}"`);
    for (const e of document.querySelectorAll(".panel"))
        if (e.scrollWidth > e.clientWidth + 1) found.push(`a table is cut: ${e.scrollWidth} of ${e.clientWidth}`);
    return [...new Set(found)];
})()"""

findings = []


def check(condition, text):
    if not condition:
        findings.append(text)


def open_page(page, address):
    page.open(address)
    settle(page)


def settle(page):
    page.wait("document.documentElement.dataset.shown && !document.querySelector('main[aria-busy]')")


def press(page, key, **options):
    """Presses a key and waits until the page that it may lead to is there."""
    page.press(key, **options)
    settle(page)


def take(page, where):
    """What the page said that it should not have said."""
    page.pump(0.05)
    for text in page.findings:
        findings.append(f"{where}: {text}")
    page.findings.clear()


def looks(page, server):
    for name, path in PAGES.items():
        for width, height, scheme in SIZES:
            page.size(width, height)
            page.media("screen", scheme)
            open_page(page, server.address + path)
            check(page.evaluate("document.documentElement.dataset.theme") == scheme, f"{name}: the theme is not {scheme}")
            where = f"{name} at {width} {scheme}"
            findings.extend(f"{where}: {text}" for text in page.evaluate(CHECKS))
            take(page, where)
        page.size(1400, 900)
        pdf = page.print()
        check(pdf.startswith(b"%PDF") and len(pdf) > 8000, f"{name} printed: {len(pdf)} bytes")
        page.media("print", "light")
        shown = page.evaluate("[...document.querySelectorAll('nav, .tools, .tabs, :not(td) > .chip')].filter(e => e.getClientRects().length).length")
        check(shown == 0, f"{name} printed: {shown} controls are shown")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        check(page.evaluate("[...document.querySelectorAll('canvas')].every(e => Math.abs(e.clientWidth * e.height / e.width - e.clientHeight) < 2)"), f"{name} printed: a drawing is stretched")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        if name == "compare":
            check(page.evaluate("[...document.querySelectorAll('td.sample')].every(e => e.innerText.trim())"), "compare printed: a sample has no name")
        check(page.evaluate("[...document.querySelectorAll('.answer')].every(e => getComputedStyle(e).maxHeight === 'none')"), f"{name} printed: texts are folded")
        take(page, f"{name} printed")
    page.media("screen", "light")


def focus(page, server):
    """Tab reaches the controls, and what has the focus is outlined."""
    for name, path in PAGES.items():
        open_page(page, server.address + path)
        seen = set()
        for _ in range(14):
            page.press("Tab")
            seen.add(page.evaluate("""(() => { const e = document.activeElement, s = getComputedStyle(e);
                return e === document.body ? "body" : `${s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 ? "" : "no outline: "}${e.tagName}#${e.id}.${e.className}`; })()"""))
        for text in seen:
            check(not text.startswith("no outline"), f"{name}: {text}")
        check(len(seen) > 5, f"{name}: Tab reaches {sorted(seen)}")
        take(page, f"{name} with Tab")


def keys(page, server):
    """Every key that the help lists does what it says."""
    path = "location.pathname + location.search"
    at = lambda: page.evaluate(path)
    open_page(page, server.address + "/")
    press(page, "?", shift=True)
    check(page.evaluate("document.getElementById('keys').open"), "? does not open the help")
    listed = page.evaluate("[...document.querySelectorAll('#keys kbd')].map(e => e.textContent).join(' ')")
    check(listed == "1 2 3 4 / j k Enter [ ] s v f ← → w a s d 0 Esc t ?", f"the help lists {listed}: try each key here")
    press(page, "?", shift=True)
    check(not page.evaluate("document.getElementById('keys').open"), "? does not close the help")
    for key, wanted in (("2", "/groups"), ("3", "/compare"), ("4", "/trace"), ("1", "/")):
        press(page, key)
        check(at() == wanted, f"{key} leads to {at()}")
    theme = page.evaluate("document.documentElement.dataset.theme")
    press(page, "t")
    check(page.evaluate("document.documentElement.dataset.theme") != theme, "t does not change the theme")
    press(page, "t")
    press(page, "/")
    page.wait("document.activeElement.id === 'where'")
    check(at() == "/groups", "/ does not lead to the groups")
    page.call("Input.insertText", text="group.right < 5")
    press(page, "Enter")
    page.wait("location.search.includes('where')")
    settle(page)
    page.press("Escape")
    page.evaluate("document.activeElement.blur()")
    press(page, "j")
    press(page, "j")
    check(page.evaluate("[...document.querySelectorAll('tbody tr')].findIndex(r => r.getAttribute('aria-selected'))") == 1, "j j does not choose the second row")
    press(page, "k")
    check(page.evaluate("[...document.querySelectorAll('tbody tr')].findIndex(r => r.getAttribute('aria-selected'))") == 0, "k does not go up")
    first, second = page.evaluate("[...document.querySelectorAll('tbody tr')].slice(0, 2).map(r => r.dataset.id)")
    page.press("Enter")
    page.wait("location.pathname.startsWith('/group/')")
    settle(page)
    check(at().startswith("/group/" + first), f"Enter opens {at()}")
    press(page, "]")
    check(at().startswith("/group/" + second), f"] leads to {at()}")
    press(page, "[")
    check(at().startswith("/group/" + first), f"[ leads to {at()}")
    press(page, "Escape")
    check(at().startswith("/groups?where"), f"Escape leads to {at()}")
    open_page(page, server.address + GROUP)
    for key, name, wanted in (("s", "shade", "reference"), ("s", "shade", "none"), ("s", "shade", "logprob"), ("v", "layout", "beside"), ("v", "layout", "below"), ("f", "fade", "alike"), ("f", "fade", "fade")):
        press(page, key)
        pressed = page.evaluate(f"document.querySelector('[id^={name}-][aria-pressed=true]').id")
        check(pressed == f"{name}-{wanted}", f"{key} sets {pressed}, not {wanted}")
    page.evaluate("document.querySelector('.answer').focus()")
    press(page, "ArrowRight")
    press(page, "ArrowRight")
    tip = page.evaluate("document.getElementById('tip').textContent")
    check(tip.startswith("token 2 of") and "log p" in tip, f"→ shows {tip!r}")
    press(page, "ArrowLeft")
    check(page.evaluate("document.getElementById('tip').textContent").startswith("token 1 of"), "← does not go back")
    page.evaluate("document.getElementById('frame-0-1').click()")
    press(page, "ArrowRight")
    check("frame 3 of 4" in page.evaluate("document.getElementById('frame').textContent"), "→ does not lead to the next frame")
    check(page.evaluate("document.querySelector('#frame img').width % 56") == 0, "a frame is not enlarged by a whole number")
    page.press("Escape")
    page.wait("!document.getElementById('frame').open")
    check(at().startswith(GROUP), f"Escape from a frame leads to {at()}")
    open_page(page, server.address + "/")
    page.evaluate("document.querySelector('.chart').focus()")
    press(page, "ArrowLeft")
    check(page.evaluate("document.querySelectorAll('.hair.on').length") > 5, "← moves no cursor of the curves")
    page.evaluate("document.querySelector('.map canvas').focus()")
    press(page, "ArrowRight")
    page.press("Enter")
    page.wait("location.pathname.startsWith('/group/')")
    settle(page)
    for start in ("/trace", "/"):
        open_page(page, server.address + start)
        press(page, "w")
        closer = at()
        check("?" in closer, f"{start}: w does not zoom in")
        press(page, "d")
        later = at()
        check(later != closer, f"{start}: d does not move")
        press(page, "a")
        check(at() != later, f"{start}: a does not move")
        press(page, "w")
        press(page, "s")
        press(page, "0")
        check(at() == start, f"{start}: 0 leads to {at()}")
        press(page, "w")
        press(page, "s")
        check(at() == start, f"{start}: s leads to {at()}")
    open_page(page, server.address + "/trace")
    page.evaluate("document.querySelector('.trace canvas').focus()")
    press(page, "ArrowRight")
    check(page.evaluate("document.getElementById('chosen-group') !== null"), "→ chooses no group of the trace")
    take(page, "keys")


def pointer(page, server):
    """Clicks and drags lead where they should."""
    open_page(page, server.address + "/")
    box = page.evaluate("(() => { const b = document.querySelector('.map canvas').getBoundingClientRect(); return [b.left, b.bottom, b.width]; })()")
    page.click(box[0] + box[2] * 0.555, box[1] - 8)  # step 56, its lowest cell
    page.wait("location.pathname.startsWith('/group/')")
    settle(page)
    identity = page.evaluate("decodeURIComponent(location.pathname.slice(7))")
    row = server.routes.source("replicas").data.by_id[identity]["row"]
    least = min(g["row"]["right"] for g in server.routes.source("replicas").data.groups if g["row"]["step"] == 56 and g["row"]["right"] is not None)
    check((row["step"], row["right"]) == (56, least), f"a click on the map opens {identity} of step {row['step']} with {row['right']} right")
    open_page(page, server.address + "/groups?where=group.named+%3E+0")
    matched = page.evaluate("document.getElementById('matched').textContent")
    wanted = sum(1 for g in server.routes.source("replicas").data.groups if g["row"]["named"])
    check(matched.startswith(f"{wanted} of "), f"{matched}, but {wanted} groups match")
    box = page.evaluate("(() => { const b = document.querySelector('.histogram svg').getBoundingClientRect(); return [b.left, b.top, b.width]; })()")
    page.drag(box[0] + box[2] * 0.515, box[1] + 20, box[0] + box[2] * 0.535, box[1] + 20)
    page.wait("location.search.includes('steps')")
    settle(page)
    check(page.evaluate("new URLSearchParams(location.search).get('steps')") == "52-54", "a drag over the histogram does not set steps 52-54")
    page.expected = ("status of 400",)
    open_page(page, server.address + "/groups?where=accuracy+%3D+x")
    error = page.evaluate("document.querySelector('.error').textContent")
    check("compared with a number" in error and error.split("\n")[1].index("^") == 11, f"the error is shown as {error!r}")
    page.expected = ("status of 404",)
    open_page(page, server.address + "/group/none")
    check("no group has the id" in page.evaluate("document.querySelector('main').textContent"), "an unknown group is not named")
    page.expected = ()
    open_page(page, server.address + "/compare?a=before&b=after")
    page.evaluate("document.querySelector('tbody tr[data-id] button').click()")
    page.wait("document.querySelector('.pair .text')")
    whole = server.routes.compare

    def other_sizes(query):
        answer = whole(query)
        rows = answer["rows"]
        answer["b"]["size"], rows["change"], rows["right_b"] = 1, [-0.5, None] + [0] * (len(rows["a"]) - 2), [1] * len(rows["a"])
        rows["sample"] = [None] * len(rows["a"])
        return answer
    server.routes.compare = other_sizes
    server.routes.known = {}
    open_page(page, server.address + "/compare?a=after&b=before")
    shown = page.evaluate("[...document.querySelectorAll('tbody tr[data-id]')].slice(0, 3).map(e => e.querySelector('.better, .worse, td.number .note').textContent)")
    check(shown == ["−50 %", "–", "0"], f"compare with other numbers of completions: {shown}")
    first = page.evaluate("document.querySelector('tbody tr[data-id] button').textContent")
    check(first == whole({"a": "after", "b": "before"})["rows"]["a"][0], f"a group without a sample is called {first!r}")
    server.routes.compare = whole
    server.routes.known = {}
    identity = next(i for i, entry in server.routes.source("replicas").data.by_id.items() if len(entry["same"]) > 1)
    open_page(page, server.address + f"/group/{urllib.parse.quote(identity, safe='')}?of=replicas")
    links = page.evaluate("[...document.querySelectorAll('.same a')].map(e => e.search)")
    check(links and all("of=replicas" in text for text in links), f"the same sample of another source leads to {links}")
    open_page(page, server.address + "/?log=rollout-2")
    check("group 59 <done>" in page.evaluate("document.querySelector('.log').textContent"), "the log is not shown")
    take(page, "pointer")


def search(page, server):
    """A search that takes several requests ends with all rows in their order, those too that the map's request has found."""
    source = server.routes.source("replicas")
    whole, map_of, asked = source.groups, source.map, []

    def parts(query):
        answer = whole({key: value for key, value in query.items() if value != "scan"})
        if query.get("after") == "scan":
            asked.append(query)
            server.routes.known = {}
            return {**answer, "cursor": None, "rows": fake_server.columns([], fake_server.COLUMNS)}
        if not asked:
            answer.update(exact=False, cursor="scan", matched=5, rows={key: column[:5] for key, column in answer["rows"].items()})
        return answer
    def part_of_map(query):
        answer = map_of(query)
        return answer if asked else {**answer, "counts": [[0] * len(row) for row in answer["counts"]]}
    source.groups, source.map = parts, part_of_map
    try:
        open_page(page, server.address + "/groups?where=group.right+%3C+4&sort=-std")
        page.wait("document.getElementById('matched').textContent !== '5 of ' + state.live.done + ' groups'")
        wanted = whole({"where": "group.right < 4", "sort": "-std"})["rows"]["id"]
        page.wait(f"document.querySelectorAll('tbody tr').length === {len(wanted)}")
        check(page.evaluate("[...document.querySelectorAll('tbody tr')].map(e => e.dataset.id)") == wanted, "the rows of a long search are in another order")
        page.wait("document.querySelector('.histogram .part')")  # it has what was found later
    finally:
        source.groups, source.map = whole, map_of
        server.routes.known = {}
    take(page, "search")


def hostile(page, server):
    """What is in a store stays text: no element more than for a tame group of the same size, and the text is there."""
    data = server.routes.source("replicas").data
    kinds = "(() => { const c = {}; for (const e of document.querySelectorAll('main *')) c[e.tagName] = (c[e.tagName] || 0) + 1; return c; })()"
    allowed = set()
    for path in PAGES.values():
        open_page(page, server.address + path)
        allowed |= set(page.evaluate(kinds))
    plain = fixture.HOSTILE["markup"]
    unseen = {"\u202e": "\\u{202e}", "\0": "\\u{0}", "\x1b": "\\u{1b}", "\x07": "\\u{7}", "\u200b": "\\u{200b}", "\ufeff": "\\u{feff}"}
    shown = fixture.HOSTILE["control"].translate({ord(k): v for k, v in unseen.items()})
    for name, entry in data.hostile.items():
        address = server.address + "/group/" + urllib.parse.quote(entry["group"]["id"])
        open_page(page, address)
        text = page.evaluate("document.querySelector('main').textContent")
        found = page.evaluate(kinds)
        check(set(found) <= allowed, f"{name}: new elements {sorted(set(found) - allowed)}")
        check(not set(found) & {"SCRIPT", "B-", "IFRAME", "OBJECT", "STYLE", "LINK"}, f"{name}: {found}")
        check(page.evaluate("document.querySelectorAll('main img').length") == (0 if name == "evicted" else 4), f"{name}: another number of images than frames")
        check("hit" not in page.evaluate("document.title"), f"{name}: a script of the store ran")
        if name == "markup":
            check(text.count(plain) >= 3, f"{name}: the text is not there as it is")
        elif name == "control":
            check(shown in text and not any(c in text for c in unseen), f"{name}: characters are not made visible")
            check("\u202e" not in page.evaluate("document.title") and "\u202e" not in page.evaluate("[...document.querySelectorAll('[title]')].map(e => e.title).join()"), f"{name}: turned in a title")
        elif name == "word":
            page.evaluate("document.querySelector('.answer button').click()")
            check(page.evaluate("document.querySelector('.answer').textContent.length") >= 1_000_000, f"{name}: the word is cut")
        elif name == "sample":
            check(fixture.HOSTILE["sample"] in text, f"{name}: the sample's id is not there")
        elif name == "tokens":
            page.evaluate("document.querySelector('.answer button')?.click()")
            check(page.evaluate("Math.max(...[...document.querySelectorAll('.answer')].map(e => e.querySelectorAll('.token').length))") == 10000, f"{name}: not every token is there")
        elif name == "many":
            check(found["ARTICLE"] == 64 and page.evaluate("document.querySelectorAll('.title .cells i').length") == 64, f"{name}: {found['ARTICLE']} completions")
        elif name == "bare":
            check("keeps no log-probabilities" in text and page.evaluate("document.getElementById('shade-logprob').disabled"), f"{name}: it is not said why nothing is shaded")
        elif name == "evicted":
            check("evicted" in text, f"{name}: it is not said where the frames are")
        findings.extend(f"{name}: {t}" for t in page.evaluate(CHECKS) if "sideways" in t or name != "word" and "contrast" in t)
        take(page, name)
    # Two characters that differ in their second half alone are not cut in two.
    check(page.evaluate("groupShared(['a\\u{1f600}', 'a\\u{1f601}'].map(text => ({text})))[1]") == 1, "a shared beginning ends within a character")
    check(page.evaluate("el('p', {}, textNodes('ab\\u{1f600}c', 3)).textContent") == "ab…", "a text is cut within a character")
    open_page(page, server.address + "/groups")
    text = page.evaluate("document.querySelector('tbody').textContent")
    check(set(page.evaluate(kinds)) <= allowed, "groups: new elements")
    page.size(390, 844)
    findings.extend(f"groups at 390 with hostile rows: {t}" for t in page.evaluate(CHECKS))
    check(page.evaluate("document.querySelector('th').getBoundingClientRect().bottom <= document.querySelector('td').getBoundingClientRect().top + 1"), "the head of a table covers its rows")
    page.size(1400, 900)
    check(plain[:50] in text and "\\u{202e}" in text and "\u202e" not in text, "groups: the texts are not shown as they are")
    findings.extend(f"groups with hostile rows: {t}" for t in page.evaluate(CHECKS))
    take(page, "groups with hostile rows")


def one_file(page, server, folder):
    """--html: the same page from a file, without a server."""
    path = pathlib.Path(folder) / "run.html"
    path.write_text(server.routes.html())
    for name, where in PAGES.items():
        page.open("about:blank")
        open_page(page, f"file://{path}#{where}")
        text = page.evaluate("document.querySelector('main').textContent")
        check(not page.evaluate("document.querySelector('main .problem:not(.bad)')?.textContent"), f"file, {name}: {page.evaluate('document.querySelector(`main .problem`)?.textContent')}")
        findings.extend(f"file, {name}: {t}" for t in page.evaluate(CHECKS))
        if name == "groups":
            wanted = sum(1 for g in server.routes.source("replicas").data.groups if g["row"]["named"])
            check(page.evaluate("document.getElementById('matched').textContent").startswith(f"{wanted} of "), "file: the condition gives another count")
        if name == "group":
            page.wait("document.querySelector('.frames img').naturalWidth === 56")
        check(len(text) > 200, f"file, {name}: {text[:200]!r}")
    check("Left out: The texts and frames of" in page.evaluate("document.querySelector('footer').textContent"), "file: it does not say what is left out")
    page.open("about:blank")
    open_page(page, f"file://{path}#/")
    offline = server.routes.source("replicas").data.groups
    for where, wanted in (("accuracy = 1 and bonus = 0", lambda m: m & 1 and not m & 4), ("format = 0 or verdict = 0", lambda m: not m & 2 or m & 8), ("(verdict = 0) and accuracy != 1", lambda m: m & 8 and not m & 1)):
        answer = page.evaluate(f"apiGet('/api/groups', {{where: {json.dumps(where)}, limit: 0}}).then(a => a.matched)")
        count = sum(1 for g in offline if any(wanted(m) for m in g["row"]["marks"]))
        check(answer == count, f"file: {where} matches {answer}, not {count}")
    counts = page.evaluate("apiGet('/api/map', {where: 'group.count > 0'}).then(a => a.counts)")
    check(counts == server.routes.source("replicas").map({"where": "group.count > 0"})["counts"], "file: the map of a condition has other counts")
    page.evaluate("go('/groups', {where: 'tokens > 3'})")
    page.wait("document.querySelector('.error')")
    check("cannot compare tokens" in page.evaluate("document.querySelector('.error').textContent"), "file: a field that it does not know is no error")
    page.evaluate("history.back()")
    page.wait("document.querySelector('.lamps')")
    take(page, "file")


def states(browser_, folder):
    """A run that is over, one that has only begun, and a store without a run."""
    for state, words in (("finished", "finished"), ("empty", "running"), ("store", "finished")):
        server = fake_server.start(state=state)
        page = browser_.page()
        for name, path in PAGES.items():
            if state == "empty" and name in ("group", "compare"):
                continue
            open_page(page, server.address + path)
            check(words in page.evaluate("document.getElementById('status').textContent"), f"{state}: the header does not say {words}")
            findings.extend(f"{state}, {name}: {t}" for t in page.evaluate(CHECKS))
            take(page, f"{state}, {name}")
        server.shutdown()


def live(page, server):
    """What is open stays open while the run goes on, and its end is shown at once; also in Compare when another run than the
    first grows; a viewer that is gone is said to be."""
    open_page(page, server.address + "/")
    page.evaluate("document.getElementById('quarantine-0').open = true")
    before = page.evaluate("state.live.seq")
    page.wait(f"state.live.seq > {before}", 30)
    check(page.evaluate("document.getElementById('quarantine-0').open"), "a new report closes what was open")
    own = server.routes.source("replicas")
    whole = own.run
    own.run = lambda query: {**whole(query), "has": dict.fromkeys(whole(query)["has"], False)}  # as at its beginning
    server.routes.known = {}
    open_page(page, server.address + "/groups")
    heads = "document.querySelector('thead').textContent"
    check("reward" not in page.evaluate(heads), "a run that has no rewards yet shows some")
    own.run = whole
    server.routes.known = {}
    page.evaluate("go('/groups', {})")
    settle(page)
    check("reward" in page.evaluate(heads), "what the run has got since is not shown")
    length = page.evaluate("(liveMerge({...state.live, history: {time: [1], busy: [[0]]}, events: [], replicas: {name: ['another']}}), state.live.history.time.length)")
    check(length == 1, "the history of other replicas is kept")
    open_page(page, server.address + "/")
    changed = next(g["row"] for g in own.data.groups if g["row"]["right"] == 8)
    page.evaluate("go('/', {})")  # its curves and counts are of now
    settle(page)
    count = page.evaluate("document.querySelector('.look .count').textContent")
    page.evaluate("(now => { performance.now = () => now; })(performance.now())")  # so that it does not load for its age
    changed["right"], server.routes.known = 0, {}  # before the end, after which the page asks once
    own.state = "finished"
    server.routes.known = {}
    try:
        page.wait(f"document.querySelector('.look .count').textContent === String({count} + 1)")  # the end is shown
    finally:
        changed["right"], own.state = 8, "running"
        server.routes.known = {}
        open_page(page, server.address + "/")
    other = server.routes.source("before")
    row = other.data.groups[-1]["row"]
    page.evaluate("compareWatched.seconds = 0.1")
    other.state = "not active"
    server.routes.known = {}
    page.evaluate("go('/compare', {a: 'before', b: 'after'})")
    page.wait("document.querySelector('tbody tr[data-id] button')")
    page.evaluate("document.querySelector('tbody tr[data-id] button').click()")
    page.wait("document.querySelector('.pair .text')")
    row["step"] += 1
    server.routes.known = {}
    try:
        page.wait(f"document.querySelector('.filter .state').textContent.includes('running, step {row['step']}')", 30)
        page.wait("document.querySelector('.pair .text')", 30)  # what was unfolded
    finally:
        row["step"], other.state = row["step"] - 1, "finished"
        server.routes.known = {}
    page.expected = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    server.gone = True
    page.wait("document.getElementById('status').textContent.includes('does not answer')", 30)
    take(page, "live")


def main():
    if not browser.find():
        print("skipped: chromium is not installed")
        return 0
    server = fake_server.start()
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as chromium:
        started = time.monotonic()

        def timed(part):
            nonlocal started
            if "-v" in sys.argv:
                print(f"{time.monotonic() - started:5.1f} s {part.__name__}", file=sys.stderr)
            started = time.monotonic()
        for part in (looks, focus, keys, pointer, search, hostile):
            page = chromium.page()
            try:
                part(page, server)
            except browser.Failed as failed:
                findings.append(f"{part.__name__}: {failed}; {page.findings[:2]}")
            timed(part)
        for part, arguments in ((one_file, (chromium.page(), server, folder)), (states, (chromium, folder)), (live, (chromium.page(), server))):
            try:
                part(*arguments)
            except browser.Failed as failed:
                findings.append(f"{part.__name__}: {failed}")
            timed(part)
    findings.extend(f"the browser reports {report[:300]}" for report in fake_server.Handler.reports)
    print("\n".join(dict.fromkeys(findings)), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
