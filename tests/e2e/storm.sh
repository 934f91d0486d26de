# Runs of pipelines under faults for at most a minute: their final weights, or without optim their groups, are equal to the
# bit to those of an undisturbed run. A failure prints its plan, which `make storm PLAN=FILE` plays again.
set -euo pipefail
command -v python3 >/dev/null || { echo "no python3: left out"; exit 0; }
seconds=55
if grep -q '__[at]san_init' "$BIN/caravan"; then seconds=20; fi # each sanitizer has its own turn
tests/storm/storm --seed 1 --seconds $seconds
