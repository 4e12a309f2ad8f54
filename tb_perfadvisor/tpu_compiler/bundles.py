"""Counts the scheduled instruction bundles of kernels, which the compiler dumps as text.

A TPU core issues a bundle of instructions per cycle. The dump has one bundle per line:

    0x4 LB: > { %s12 = sadd.s32 1, %s11 ;; … } /* Start region 24567 :: Start region 22 */
    0x5   : > { %p9_p0 = scmp.ge.s32.totalorder %s12, 10 /* loop exit test */ }
    0x6   :  { %11 = sbr.rel (!%p9_p0) target = $region24567 }

`LB` begins the body of a loop, whose last bundle branches back to a region that begins there. The
counter starts at 0, so the exit test states the number of trips. Bundles that are skipped in some
trips count in all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|\d+) +(LB|[A-Z]{2})? *:")
_STARTED = re.compile(r"Start(?:/End empty)? region (\d+)")
_BRANCH = re.compile(r"sbr\.rel \(!?(%\w+)\) target = \$region(\d+)")
_EXIT_TEST = re.compile(r"(%\w+) = scmp\.ge\.s32\.totalorder %\w+, (\d{1,9})\b")
# Equal kernels are scheduled once.
_EQUIVALENT = re.compile(r"^key:(.+)\nordinal:\d+\nequivalent_hlos.*:\n((?:  .+\n)*)", re.MULTILINE)
# 1795372218314570156-fusion.2-01-final_bundles.txt
_FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")


def dumped_cycles(folder: Path) -> dict[str, int]:
    """Cycles of each kernel whose bundles were dumped to a folder, by the instruction's name."""
    cycles = {}
    for path in sorted(folder.glob("*-final_bundles.txt")):
        match = _FILE.fullmatch(path.name)
        if match is not None and not match[1].startswith("<") and match[1] != "TLP":
            cycles[match[1]] = count_cycles(_text(path))
    for path in folder.glob("*-deduplication-map.txt"):
        for name, equivalents in _EQUIVALENT.findall(_text(path)):
            if name in cycles:
                cycles.update(dict.fromkeys(equivalents.split(), cycles[name]))
    return cycles


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def count_cycles(text: str) -> int:
    """Cycles of a kernel: its bundles, each times the trips of the loops around it.

    A loop whose number of trips is not in the text counts once.
    """
    loops: dict[str, int] = {}
    exits: dict[str, int] = {}
    cycles: list[int] = []
    for line in text.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle is None:
            continue
        if bundle[1] == "LB":
            loops.update(dict.fromkeys(_STARTED.findall(line), len(cycles)))
        cycles.append(1)
        exits.update((name, int(limit)) for name, limit in _EXIT_TEST.findall(line))
        for name, region in _BRANCH.findall(line):
            start = loops.pop(region, None)
            if start is not None:
                # Of a nest, inner loops end first.
                trips = max(exits.get(name, 1), 1)
                cycles[start:] = [trips * sum(cycles[start:])]
    return sum(cycles)
