#!/usr/bin/env python3
"""routes.py [ADDRESS [COOKIE]]: compares the answers of a server with the examples in tools/view/ROUTES.md: the same keys,
values of the same types, columns of equal length. Without an address it asks the fixture server. Exit 1 with a line a finding."""
import json, pathlib, re, sys, urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
PAGE = pathlib.Path(__file__).resolve().parents[2] / "tools/view/ROUTES.md"
FREE = ("settings", "group", "waits", "notes")  # their keys depend on the run
COLUMNS = ("replicas", "rows", "stages", "groups", "bars")  # objects of arrays of equal length


def examples():
    """The examples by the route's path."""
    for section in PAGE.read_text().split("\n## /api/")[1:]:
        match = re.search(r"```json\n(.*?)```", section, re.S)
        yield "/api/" + re.match(r"[\w/]+", section).group(), json.loads(match.group(1))


def kind(value):
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def differences(where, wanted, found):
    if wanted is None or found is None:
        return
    if kind(wanted) != kind(found):
        yield f"{where}: {kind(found)}, not {kind(wanted)}"
    elif isinstance(wanted, dict) and where.rsplit(".", 1)[-1] not in FREE:
        metrics = where == "/api/metrics"
        for key in wanted.keys() | found.keys():
            if key not in found:
                yield f"{where}.{key} is missing"
            elif key in wanted:
                yield from differences(f"{where}.{key}", wanted[key], found[key])
            elif not metrics:
                yield f"{where}.{key} is not in ROUTES.md"
        if where.rsplit(".", 1)[-1] in COLUMNS and len({len(v) for v in found.values()}) > 1:
            yield f"{where}: columns of different lengths"
    elif isinstance(wanted, list) and wanted:
        for value in found[:50]:
            yield from differences(where + "[]", wanted[0], value)


def check(get):
    """`get` answers an address with the parsed JSON."""
    groups = get("/api/groups?limit=200")
    run = get("/api/run")
    names = [run["name"], *run["others"]]
    for path, example in examples():
        address = path
        if path == "/api/group/ID":
            rows = groups["rows"]
            address = "/api/group/" + rows["id"][next(i for i, m in enumerate(rows["marks"]) if len(m) > 1)]
        elif path == "/api/compare":
            if len(names) < 2:
                continue
            address += f"?a={names[-2]}&b={names[-1]}"
        yield from differences(path.replace("/ID", ""), example, get(address))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        address, headers = sys.argv[1].rstrip("/"), {"Cookie": sys.argv[2]} if len(sys.argv) > 2 else {}
    else:
        import fake_server
        address, headers = fake_server.start().address, {}

    def get(path):
        with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers)) as answer:
            return json.loads(answer.read())
    found = list(check(get))
    print("\n".join(found) or "the answers are as in ROUTES.md")
    sys.exit(1 if found else 0)
