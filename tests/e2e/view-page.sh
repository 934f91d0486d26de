# The page of `caravan view` in a real browser, against made-up answers: what it shows at three widths, in both themes and
# printed, its keys, and that nothing in a store becomes markup; this also against `caravan view` itself.
set -euo pipefail
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
python3 tests/view/routes.py
python3 tests/view/page_test.py
python3 tests/view/server_test.py "${BIN:-$PWD/build/bin}/caravan"
