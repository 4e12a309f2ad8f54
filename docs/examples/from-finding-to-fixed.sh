#!/usr/bin/env bash
# From a slow program to the verdict on its fix:
#
#   docs/examples/from-finding-to-fixed.sh pytorch|keras|jax [DIRECTORY]
#
# Needs this package, the framework and git. Takes less than two minutes on the CPU. The slow
# programs are beside this script; each records a profile of itself.
set -euo pipefail

FRAMEWORK=$1
HERE=$(cd "$(dirname "$0")" && pwd)
WORK=${2:-$(mktemp -d)}
PYTHON=${PYTHON:-python}
perfadvisor() { "$PYTHON" -m tb_perfadvisor "$@"; }

mkdir -p "$WORK/code"
cd "$WORK"
cp "$HERE/slow_$FRAMEWORK.py" code/train.py

echo "== Record the slow program"
"$PYTHON" code/train.py runs/slow

echo "== What to change first"
perfadvisor analyze runs/slow --format brief

echo "== A patch for it"
FIRST=$(perfadvisor analyze runs/slow --format brief | "$PYTHON" -c '
import json, sys
(report,) = json.load(sys.stdin)["reports"]
number = report["first"].rstrip("abcdefghijklmnopqrstuvwxyz")  # the general finding has the patch
print(next(each["rule_id"] for each in report["findings"] if each["number"] == number))')
perfadvisor suggest runs/slow --repo code --rule "$FIRST" | tee fix.patch

echo "== Apply it, and record again"
(cd code && git apply ../fix.patch)
"$PYTHON" code/train.py runs/fixed

echo "== Did it save what was promised?"
perfadvisor compare runs/slow runs/fixed
perfadvisor compare runs/slow runs/fixed --format json > verdict.json
"$PYTHON" - <<'PYTHON'
import json

(target,) = json.load(open("verdict.json"))["comparisons"][0]["targets"]
predicted = target["findings"][0]
assert target["verdict"] == "faster", target["headline"]
assert predicted["achieved_ns"] >= predicted["predicted"]["low_ns"], predicted
print(f"achieved: {target['headline']}")
PYTHON
