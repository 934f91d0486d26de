#!/usr/bin/env python3
"""shots.py FOLDER [ADDRESS] [PAGE...]: pictures of the pages in FOLDER, of the fixture's run unless there is an ADDRESS,
which caravan view has printed."""
import pathlib, sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
import browser, fake_server

SIZES = {"light": (1400, 900, "light", False), "dark": (1400, 900, "dark", False), "phone": (390, 844, "light", True)}


def main(folder, address=None, names=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    server = None if address else fake_server.start()
    address = address or server.address
    pages = {"overview": "/", "groups": "/groups?where=group.named+%3E+0", "group": "/group/e0-000214", "compare": "/compare?a=before&b=after", "trace": "/trace"}
    with browser.Browser() as chromium:
        page = chromium.page()
        if not server:  # its token becomes a cookie
            page.open(address)
            address = address.split("/?")[0]
            page.wait("document.documentElement.dataset.shown")
            group, others = page.evaluate("""(async () => {
                const get = async path => (await fetch(path)).json();
                const rows = (await get("/api/groups?limit=1&sort=-std")).rows, run = await get("/api/run");
                return [rows.id[0], [run.name, ...run.others]];
            })()""")
            pages |= {"groups": "/groups?where=group.right+%3E+0&sort=-std", "group": "/group/" + group}
            if len(others) > 1:
                pages["compare"] = "/compare?a={}&b={}".format(*(others[1:3] if len(others) > 2 else reversed(others)))
        for name, path in pages.items():
            if names and name not in names:
                continue
            for size, (width, height, scheme, whole) in SIZES.items():
                page.size(width, height)
                page.media("screen", scheme)
                page.open(address + path)
                page.wait("document.documentElement.dataset.shown && !document.querySelector('main[aria-busy]')")
                page.pump(0.4)
                page.picture(folder / f"{name}-{size}.png", whole or size == "light")
        if not server:  # for the README: under 300 KB
            page.size(1280, 800)
            page.media("screen", "light")
            page.open(address + "/")
            page.wait("document.documentElement.dataset.shown && !document.querySelector('main[aria-busy]')")
            page.pump(0.4)
            page.picture(folder / "page.png")
        for finding in page.findings:
            print(finding)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 and sys.argv[2].startswith("http") else None, [a for a in sys.argv[2:] if not a.startswith("http")])
