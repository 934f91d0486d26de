# The example that converts image benchmarks: a small file of each layout, and what caravan data counts in the result.
. tests/e2e/common.sh
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
convert() { pipelines/examples/image_benchmarks.py "$@"; }
mkdir "$work/m"
cp tests/data/media/alpha.png "$work/m/a.png"
cat >"$work/cv.jsonl" <<'END'
{"idx": 0, "type": "2D", "task": "Count", "filename": "a.png", "question": "How many?", "choices": ["4", "1"], "answer": "(B)", "prompt": "x"}
END
cat >"$work/vista.json" <<'END'
{"1": {"question": "When?", "image": "a.png", "choices": null, "answer": "1.2", "answer_type": "float", "pid": "1", "metadata": {"task": "figure"}},
 "2": {"question": "Which?", "image": "a.png", "choices": ["yes", "no"], "answer": "no", "pid": "2", "metadata": {}}}
END
cat >"$work/vision.jsonl" <<'END'
{"id": "1", "question": "Odd one?\n<image1>", "options": ["A", "B", "C"], "image": "a.png", "answer": "C", "subject": "logic", "level": 2}
{"id": "2", "question": "Length?", "options": [], "image": "a.png", "answer": "about \\pi", "subject": "geometry", "level": 5}
END
cat >"$work/puzzle.json" <<'END'
{"image": "images/colour/a.png", "question": "Missing colour?", "options": ["red", "blue"], "answer": "red", "caption": "c"}
END
mkdir -p "$work/m/images/colour"
cp "$work/m/a.png" "$work/m/images/colour/a.png"
for pair in cv-bench:cv.jsonl mathvista:vista.json mathvision:vision.jsonl puzzlevqa:puzzle.json; do
    convert ${pair%:*} "$work/${pair#*:}" >>"$work/all.jsonl"
done
cut -d, -f2- "$work/all.jsonl" | diff - <(cat <<'END'
 "problem": "How many?", "data_type": "image", "path": "a.png", "category": "Count", "options": ["A. 4", "B. 1"], "problem_type": "multiple choice", "solution": "<answer>B</answer>"}
 "problem": "When?", "data_type": "image", "path": "a.png", "category": "figure", "problem_type": "numerical", "solution": "<answer>1.2</answer>"}
 "problem": "Which?", "data_type": "image", "path": "a.png", "category": null, "options": ["A. yes", "B. no"], "problem_type": "multiple choice", "solution": "<answer>B</answer>"}
 "problem": "Odd one?", "data_type": "image", "path": "a.png", "category": "logic", "options": ["A. A", "B. B", "C. C"], "problem_type": "multiple choice", "solution": "<answer>C</answer>"}
 "problem": "Length?", "data_type": "image", "path": "a.png", "category": "geometry", "problem_type": "free-form", "solution": "<answer>about \\pi</answer>"}
 "problem": "Missing colour?", "data_type": "image", "path": "images/colour/a.png", "category": "colour", "options": ["A. red", "B. blue"], "problem_type": "multiple choice", "solution": "<answer>A</answer>"}
END
) || fail "converted records"
"$bin/caravan-source" --stdio --data "$work/all.jsonl" --format video-r1 --shuffle false >"$work/groups" 2>/dev/null
[ "$(wc -l <"$work/groups")" = 6 ] && grep -q '"options":\["red","blue"\]' "$work/groups" || fail "the source refuses a record"
[ "$(grep -o '"category":"[^"]*"' "$work/groups" | cut -d'"' -f4 | paste -sd' ')" = "Count figure logic geometry colour" ] ||
    fail "the categories of an evaluation"
sed 's/Length/Le\xe2\x80\xa8ngth/' "$work/vision.jsonl" >"$work/separator.jsonl"
[ "$(convert mathvision "$work/separator.jsonl" | wc -l)" = 2 ] || fail "a line separator within a text ended a record"
sed 's/"(B)"/"(E)"/' "$work/cv.jsonl" >"$work/bad.jsonl"
expect 1 "record 1: ValueError: the answer '(E)' is none of" convert cv-bench "$work/bad.jsonl"
expect 1 'usage: ' convert mmmu "$work/cv.jsonl"
