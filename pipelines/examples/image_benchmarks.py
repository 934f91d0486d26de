#!/usr/bin/env python3
"""image_benchmarks.py LAYOUT FILE...: converts the questions of an image benchmark to the layout `video-r1`.

LAYOUT is cv-bench (test.jsonl), mathvista (testmini.json), mathvision (test.jsonl), or puzzlevqa (its files of
JSON lines; AlgoPuzzleVQA has the same layout). The records go to standard output, one on each line; `path` is the
image's path as the benchmark has it, relative to its directory. `caravan data` checks the result.
"""
import json
import pathlib
import sys


def records_of(path):
    """The records of a file: JSON lines, an array, or an object of records by their ids."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    if isinstance(content, list):
        return content
    return list(content.values()) if all(isinstance(value, dict) for value in content.values()) else [content]


def is_number(text):
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


def converted(question, image, options, answer, category):
    """A record in the layout video-r1. `answer` is an option's text or its letter, or any text without options."""
    options, answer = [str(option) for option in options or []], str(answer).strip()
    record = {"problem": question, "data_type": "image", "path": image, "category": category}
    if options:
        letter = answer.strip("()")
        if answer in options:
            letter = chr(ord("A") + options.index(answer))
        if len(letter) != 1 or not 0 <= ord(letter) - ord("A") < len(options):
            raise ValueError(f"the answer {answer!r} is none of {options}")
        answer = letter
        record["options"] = [f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(options)]
    kind = "multiple choice" if options else "numerical" if is_number(answer) else "free-form"
    return {**record, "problem_type": kind, "solution": f"<answer>{answer}</answer>"}


LAYOUTS = {
    "cv-bench": lambda r: converted(r["question"], r["filename"], r["choices"], r["answer"], r.get("task")),
    "mathvista": lambda r: converted(r["question"], r["image"], r.get("choices"), r["answer"],
                                     r.get("metadata", {}).get("task")),
    "mathvision": lambda r: converted(r["question"].replace("<image1>", "").strip(), r["image"], r.get("options"),
                                      r["answer"], r.get("subject")),
    "puzzlevqa": lambda r: converted(r["question"], r["image"], r["options"], r["answer"],
                                     pathlib.PurePath(r["image"]).parent.name),
}


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in LAYOUTS:
        sys.exit(f"usage: image_benchmarks.py {'|'.join(LAYOUTS)} FILE...")
    number = 0
    for path in sys.argv[2:]:
        for record in records_of(path):
            try:
                result = LAYOUTS[sys.argv[1]](record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                sys.exit(f"{path}: record {number + 1}: {type(error).__name__}: {error}")
            number += 1
            print(json.dumps({"problem_id": number, **result}, ensure_ascii=False))


main()
