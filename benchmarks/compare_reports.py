"""Checks whether two versions of the code find and measure the same.

    perfadvisor analyze LOGDIR --format json --views --no-cache --output before.json
    # … change the code …
    perfadvisor analyze LOGDIR --format json --views --no-cache --output after.json
    python benchmarks/compare_reports.py before.json after.json

Everything that a report measures or decides must be equal: numbers, ids, statuses, and the order
and length of every list. Run times are ignored. Fields may be added. Text may be reworded, and is
listed for reading. Pass `--renames FILE` with lines of `OLD NEW` for ids that were renamed.

Exits with 1 if anything but wording differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_IGNORED = frozenset({"elapsed_ms", "generator"})
# Strings that programs read. All other strings are text for people, or names from the trace.
_IDENTIFIERS = frozenset(
    {
        *("id", "rule_id", "refines", "category", "severity", "basis", "status", "signal"),
        *("cause", "source", "framework", "formats", "unit", "type", "kind", "key", "language"),
    }
)
_NUMBER = re.compile(r"\d[\d,.]*")
_MOST_SHOWN = 40


class Difference(NamedTuple):
    """Where two reports differ, and how."""

    path: str
    before: Any
    after: Any
    is_wording: bool = False


def differences(
    before: Any, after: Any, renames: Mapping[str, str], path: str = ""
) -> Iterator[Difference]:
    """Compare two JSON values.

    Args:
        before: The value that the old code wrote.
        after: The value that the new code wrote.
        renames: New id by old id.
        path: Where the values are, for messages.
    """
    key = re.sub(r"\[\d+\]", "", path).rpartition(".")[2]
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name in _IGNORED:
                continue
            renamed = name if name in after else renames.get(name, name)
            if renamed not in after:
                yield Difference(f"{path}.{name}", value, "(missing)")
            else:
                yield from differences(value, after[renamed], renames, f"{path}.{renamed}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield Difference(path, f"{len(before)} items", f"{len(after)} items")
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, renames, f"{path}[{index}]")
    elif isinstance(before, str) and isinstance(after, str):
        if after not in (before, renames.get(before)):
            yield Difference(path, before, after, is_wording=key not in _IDENTIFIERS)
    elif before != after or type(before) is not type(after):
        yield Difference(path, before, after)


def main() -> None:
    """Compare the two files that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--renames", type=Path, help="lines of OLD NEW")
    parser.add_argument("--wording", action="store_true", help="list every reworded text")
    given = parser.parse_args()
    renames = {}
    if given.renames:
        lines = given.renames.read_text(encoding="utf-8").splitlines()
        renames = dict(line.split() for line in lines if line.strip())
    before, after = (json.loads(path.read_text("utf-8")) for path in (given.before, given.after))
    found = list(differences(before, after, renames))
    changed = [difference for difference in found if not difference.is_wording]
    reworded = Counter(
        (difference.before, difference.after) for difference in found if difference.is_wording
    )
    for path, old, new, _ in changed[:_MOST_SHOWN]:
        print(f"{path}: {old!r} -> {new!r}")
    # A number in a text is a measurement, which a reworded text must still contain.
    unlike = {
        (old, new): count
        for (old, new), count in reworded.items()
        if sorted(_NUMBER.findall(old)) != sorted(_NUMBER.findall(new))
    }
    listed = reworded if given.wording else unlike
    for (old, new), count in list(listed.items())[: None if given.wording else _MOST_SHOWN]:
        print(f"\n{count} x - {old}\n    + {new}")
    print(
        f"\n{len(before['reports'])} and {len(after['reports'])} reports: "
        f"{len(changed)} differences"
        f", {len(reworded)} texts reworded, {len(unlike)} of them with other numbers"
    )
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
