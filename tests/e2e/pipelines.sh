#!/bin/sh
# caravan check finds no mistake in the pipeline files of this repository but missing files, which a user provides. It
# finds every mistake in a bad file and names its line and column.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for file in pipelines/*.yaml pipelines/*/*.yaml; do
    "$BIN/caravan" check "$file" >"$work/out" 2>&1 && continue
    if grep -v 'No such file or directory$' "$work/out" | grep -v "^caravan: $file: [0-9]* mistakes*$"; then
        echo "$file has mistakes"
        exit 1
    fi
done

mkdir "$work/model" "$work/data"
: >"$work/data/train.jsonl"
cat >"$work/good.yaml" <<END
run: runs/good
model: model
stages:
  - source: {data: data/train.jsonl}
  - frames: {replicas: 2}
  - rollout: {}
  - refscore: {}
  - mine: {program: cat}
  - reward: {}
  - optim: {}
END
"$BIN/caravan" check "$work/good.yaml" | grep -q 'no mistakes: good, 7 stages in 8 processes'
"$BIN/caravan" graph "$work/good.yaml" | grep -q '"mine" -> "reward"'
"$BIN/caravan" graph --text "$work/good.yaml" | grep -q 'frames x2'

cat >"$work/bad.yaml" <<END
runs: runs/bad
model: nowhere
stages:
  - source: {data: data/none.jsonl, format: csv}
  - frames: {replicas: many, fps: -1}
  - rollout: {on: mars, temprature: 1}
  - refscore: {span: [content]}
  - reward: {method: care, margin: much}
  - optim: {lr: fast, from: rewards}
END
code=0
"$BIN/caravan" check "$work/bad.yaml" 2>"$work/out" || code=$?
[ "$code" = 65 ]
[ "$(grep -c "^$work/bad.yaml:[0-9]*:[0-9]*: " "$work/out")" = 13 ]

code=0
"$BIN/caravan" check "$work/good.yaml" --set frames.fps=0 2>"$work/out" || code=$?
[ "$code" = 64 ]
