"""Run one rule's tests, or create the rule when its id is new.

    python scripts/rule.py input-stall
    python scripts/rule.py cudnn-benchmark-off --category compute
    python scripts/rule.py slow-sort --table xla/costly_operations

A new rule is three files: the rule, its page, and a test that draws the slow trace and the fixed
one. Its test fails until `check` is written. A rule of a table is an entry of two files: the table,
and its cases.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from tb_perfadvisor.rules.base import Category
from tb_perfadvisor.rules.registry import builtin_rules

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "tb_perfadvisor" / "rules"
TABLES = ("xla/costly_operations",)
"""Those of which an entry needs no code."""

RULE = '''"""TODO: what the time goes to, in a few words."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals


class {class_name}(Rule):
    """TODO: the failing state in one sentence."""

    id = "{rule_id}"
    title = "TODO: what to do, as an imperative"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS)

    minimum_share = Limit(0.01, "share", "TODO: why less than this is not worth a change.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        # 1. Read signals: import a function from tb_perfadvisor.signals, call it on `signals`.
        # 2. Return if it shows nothing, or if `self.is_minor(total_ns, signals)`.
        # 3. Yield a Finding with a summary, a Saving, evidence and
        #    `remedies=advise("…")`, with changes of docs/advice.md or new ones in its catalog.
        return ()
'''

TEST = '''from __future__ import annotations

from tb_perfadvisor.rules.{category}.{module} import {class_name}
from tb_perfadvisor.testing import check_rule, find

# One character is one millisecond; docs/adding-a-rule.md explains the letters.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |oooo......|oooo......|oooo......|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""
FIXED = """
    cell 1ms
    step   |......|......|......|
    main   |oooo..|oooo..|oooo..|
    gpu 7  |.KKKKK|.KKKKK|.KKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule({class_name}, slow=SLOW, fixed=FIXED, saves="4ms")
    assert "4.00 ms of each step" in checked.findings[0].summary


def test_just_below_and_just_above_the_limit() -> None:
    # 4 of 10 ms.
    assert find({class_name}, SLOW, settings={{"minimum_share": 0.41}}) == ()
    assert len(find({class_name}, SLOW, settings={{"minimum_share": 0.39}}) or ()) == 1
'''

PAGE = '''[{rule_id}.page]
finds = """
TODO: what is in the trace when this is wrong."""
matters = """
TODO: why it costs time."""
measured = """
TODO: what low, expected and high are, and which time they claim."""
ignore = "TODO: when it is meant to be so."
verify = "TODO: what a new profile shows after the fix."
references = "TODO: documentation or measurements that the rule rests on."
'''


ENTRY = """
[{rule_id}]
title = "TODO: what to do, as an imperative"
says = "TODO: the failing state in one sentence."
activity = "goes into TODO: what takes the time"
noun = "operation"
operations = {{ opcodes = ["TODO"], names = ["TODO: how their names start"] }}
remaining_share = 0.5
changes = ["TODO: ids of docs/advice.md"]
limits.minimum_share = {{ value = 0.02, unit = "share", why = "TODO: why less is too little." }}

"""

CASES = """
[{rule_id}]
saves_ns = [0, 4_000_000, 8_000_000]  # low, expected and high over both steps
[[{rule_id}.found]]
text = "TODO: HLO text of an operation that the rule is about"
path = ""
[[{rule_id}.passed]]
text = "TODO: one that it must leave alone"
"""


def test_of(rule_id: str) -> Path | None:
    """The file that calls `check_rule` for a rule that exists."""
    names = [rule.__name__ for rule in builtin_rules() if rule.id == rule_id]
    if not names:
        return None
    tests = sorted((ROOT / "tests" / "rules").glob("*.py"))
    called = re.compile(rf"check_rule\(\s*{names[0]}\b")
    for table in sorted((ROOT / "tests" / "rules").glob("*.toml")):
        if f"[{rule_id}]\n" in table.read_text("utf-8"):
            return table.with_name(f"test_{table.stem}.py")
    return next((path for path in tests if called.search(path.read_text("utf-8"))), None)


def create(rule_id: str, category: str) -> list[Path]:
    """Write the rule, its page and its test.

    Returns:
        The new files.
    """
    module = rule_id.replace("-", "_")
    names = {
        "rule_id": rule_id,
        "category": category,
        "module": module,
        "class_name": "".join(part.capitalize() for part in rule_id.split("-")),
    }
    contents = {
        RULES / category / f"{module}.py": RULE,
        RULES / category / f"{module}.toml": PAGE,
        ROOT / "tests" / "rules" / f"test_{module}.py": TEST,
    }
    for path, template in contents.items():
        path.write_text(template.format_map(names), encoding="utf-8", newline="\n")
    return list(contents)


def extend(rule_id: str, table: str) -> list[Path]:
    """Append an entry to a table of rules, and to the table of its cases.

    Returns:
        The two files.
    """
    entries = RULES / f"{table}.toml"
    cases = ROOT / "tests" / "rules" / entries.name
    for path, template in ((entries, ENTRY + PAGE), (cases, CASES)):
        text = path.read_text(encoding="utf-8") + template.format(rule_id=rule_id)
        path.write_text(text, encoding="utf-8", newline="\n")
    return [entries, cases]


def run_tests(test: Path) -> int:
    """Run the rule's own tests and those that every rule must pass."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest += ["-m", "not corpus and not frameworks"]
    return subprocess.call([*pytest, str(test), "tests/promises/test_rules.py"], cwd=ROOT)


def main() -> int:
    """Run or create."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("id", help="a noun phrase of the failing state, such as input-stall")
    parser.add_argument("--category", default="", choices=["", *get_args(Category)])
    parser.add_argument("--table", default="", choices=["", *TABLES])
    arguments = parser.parse_args()
    rule_id: str = arguments.id
    if test := test_of(rule_id):
        return run_tests(test)
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", rule_id):
        parser.error(f"{rule_id!r} is no id: write words in lower case, joined by hyphens")
    if not arguments.category and not arguments.table:
        parser.error(
            f"there is no rule {rule_id!r}; to create it, say "
            f"`make rule ID={rule_id} CATEGORY=...` with one of {', '.join(get_args(Category))}"
            f", or TABLE=... with one of {', '.join(TABLES)}"
        )
    print("written:")
    table: str = arguments.table
    for path in extend(rule_id, table) if table else create(rule_id, arguments.category):
        print(f"  {path.relative_to(ROOT)}")
    print(f"Fill in each TODO, then run `make rule ID={rule_id}`. See docs/adding-a-rule.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
