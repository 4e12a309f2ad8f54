"""Measures how long the tab waits for reports that have to be made.

    PERFADVISOR_CORPUS=DIR python benchmarks/new_reports.py

Prints Markdown. A TensorBoard with an empty cache is asked over HTTP, as often as the tab asks: for
the first trace of `speed.py`, and 32 captures at even distances in the corpus.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from inputs import Inputs
from processes import ROOT
from served import serving

_CAPTURES = 32
_TAB: dict[str, float] = {
    name: float(value)
    for module in ("polling.ts", "analyses.ts")
    for name, value in re.findall(
        r"const (\w+) = ([\d_.]+);", (ROOT / "frontend/src/state" / module).read_text()
    )
}
"""How often, and how much at once, the tab asks: the constants of its modules."""


def main() -> None:
    """Measure each in turns, in new processes, and print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    # As an installer does; otherwise each worker compiles a checkout that was just changed.
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "tb_perfadvisor"], check=True)
    at_once, later, many = "a report at once", "a report after 3 s", f"{_CAPTURES} captures"
    waits_s: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="perfadvisor-new-") as made:
        logs, cache = Path(made) / "logs", Path(made) / "cache"
        logs.mkdir()
        shutil.copy(Inputs(Path(made)).kineto()[0], logs)
        for what in (at_once, later, many) * runs:
            folder = Path(os.environ["PERFADVISOR_CORPUS"]) if what == many else logs
            with serving(folder, cache, lambda address: bool(_read(address, "environment"))) as tab:
                while (listed := _read(tab, f"{_API}/captures")[1])["scan"]["is_scanning"]:
                    time.sleep(0.1)
                time.sleep(0 if what == at_once else 3)
                ids = [capture["id"] for capture in listed["captures"]]
                began = time.perf_counter()
                if what == many:
                    rows = [f"{id_}/row?retry=1" for id_ in ids[:: len(ids) // _CAPTURES]]
                    with ThreadPoolExecutor(int(_TAB["AT_ONCE"])) as asking:
                        list(asking.map(_wait, itertools.repeat(tab), rows[:_CAPTURES]))
                else:
                    _wait(tab, f"{ids[0]}/report")
                waits_s.setdefault(what, []).append(time.perf_counter() - began)
            shutil.rmtree(cache)
    print("| what | time |\n|---|---|")
    for what, times_s in waits_s.items():
        print(f"| {what} | {median(times_s):.2f} s ({min(times_s):.2f}–{max(times_s):.2f}) |")


_API = "plugin/perf_advisor/api/v1"


def _read(address: str, path: str) -> tuple[int, Any]:
    asked = Request(f"{address}/data/{path}", headers={"X-Perf-Advisor": "benchmark"})
    with urlopen(asked, timeout=60) as answer:
        return answer.status, json.load(answer)


def _wait(address: str, path: str) -> None:
    """Ask for something of a capture until it is made."""
    wait_s = _TAB["FIRST_WAIT_MS"] / 1e3
    while _read(address, f"{_API}/captures/{path}")[0] == 202:
        time.sleep(wait_s)
        wait_s = min(wait_s * _TAB["BACK_OFF"], _TAB["LONGEST_WAIT_MS"] / 1e3)
        path = path.partition("?")[0]


if __name__ == "__main__":
    main()
