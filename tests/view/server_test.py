#!/usr/bin/env python3
"""server_test.py BIN: the page against `caravan view` itself, with a file of groups whose strings must stay text: markup, control
characters, ids with slashes, a word of 1 MB, 10,000 tokens, 64 completions. Exit 1 with a line a finding."""
import json, pathlib, re, subprocess, sys, tempfile
from urllib.parse import quote

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
import browser

EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\u202e rtl \x1b[31m esc \x00 nul \"quote\" 'q' &amp;"
IDS = ["plain", "a\"b'c", "../../etc/passwd", "x" * 480, "sp ace/%2f?#", "<b>", "é\u202e"]


def group(number, name):
    count = 64 if number == 1 else 2
    tokens = [10000 if number == 2 and k == 0 else 3 for k in range(count)]
    word = ["w" * 1000000 if number == 0 and k == 0 else "short" for k in range(count)]
    return {"id": name, "sample_id": name + EVIL, "trained": {"step": number + 1}, "advantages": [0.5, -0.5] * (count // 2),
            "prompt": {"messages": [{"role": "user", "content": EVIL}], "question": EVIL, "options": [EVIL, "b"],
                       "problem_type": "multiple choice", "solution": "<answer>B</answer>"},
            "completions": [{"text": f"<think>{EVIL} {w}</think><answer>B</answer>", "finish": "eos", "tokens": [1] * n, "logprobs": [-0.1] * n}
                            for w, n in zip(word, tokens)],
            "rewards": {"accuracy": [1, 0] * (count // 2), "format": [1] * count, "bonus": [0] * count, "total": [2, 1] * (count // 2)}}


def findings(address):
    with browser.Browser() as chromium:
        page = chromium.page()
        page.size(1400, 900)
        page.media("screen", "light")
        page.open(address)
        page.wait("document.documentElement.dataset.shown")
        base = address.split("/?")[0]
        for path in ["/", "/groups", "/trace", "/compare"] + ["/group/" + quote(name, safe="") for name in IDS]:
            page.open(base + path)
            page.wait("document.documentElement.dataset.shown && !document.querySelector('main[aria-busy]')")
            page.pump(0.2)
            if page.evaluate("document.querySelectorAll('main img[src=\"x\"], main script, main b b').length"):
                yield f"{path}: a text has become an element"
            text = page.evaluate("document.querySelector('main').innerText")
            if path.startswith("/group") and "<img src=x onerror=alert(1)>" not in text:
                yield f"{path}: the text is missing: {text[:200]!r}"
        yield from page.findings


def main(program):
    if not browser.find():
        print("skipped: chromium is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "groups.jsonl"
        path.write_text("".join(json.dumps(group(i, name)) + "\n" for i, name in enumerate(IDS)))
        with subprocess.Popen([program, "view", "--listen", "127.0.0.1:0", path], stderr=subprocess.PIPE, text=True) as viewer:
            try:
                found = list(findings(re.search(r"http\S+", viewer.stderr.readline()).group()))
            finally:
                viewer.terminate()
        if viewer.returncode:
            found.append(f"caravan view ends with {viewer.returncode}")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
