"""Runs cases for some time: `python -m tests.fuzz --minutes 60 --seed 7 --format xplane`.

Prints each new kind of failure once, with the command that repeats it, and the figures at the end.
"""

from __future__ import annotations

import argparse
import gc
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType

from tests.fuzz.cases import check, format_of, make_case
from tests.fuzz.format import Files
from tests.fuzz.formats import FORMATS

TIME_LIMIT_S = 10
_EXPORTS_EVERY = 50
_MEMORY_LIMIT_BYTES = 4 << 30
_SAY_EVERY_S = 60
_WARM_UP = 500


class TooSlow(BaseException):
    """A case took longer than the limit. No `except Exception` may swallow it."""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=FORMATS, help="by default all of them, in turns")
    parser.add_argument("--case", type=int, help="run only this case, and show what it raises")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--keep", type=Path, help="write the files of failing cases here")
    given = parser.parse_args()
    # As in the tests: a sum that overflows is a wrong number.
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _too_slow)
    if given.case is not None:
        chosen = FORMATS[given.format] if given.format else format_of(given.case)
        files = make_case(chosen, given.seed, given.case)
        if given.keep:
            _keep(files, given.keep)
        check(chosen, files, exports=True)
        return 0
    run = Run(given.seed, given.first, given.format)
    deadline = time.monotonic() + 60 * given.minutes
    said = time.monotonic()
    while time.monotonic() < deadline:
        run.next()
        if time.monotonic() > said + _SAY_EVERY_S:
            said = time.monotonic()
            print(run.figures(), flush=True)
    print(run.figures())
    return 1 if run.failures else 0


class Run:
    """Cases in order of their numbers, and what came of them."""

    def __init__(self, seed: int, first: int = 0, format: str | None = None) -> None:
        self.seed, self.number, self.format = seed, first, format
        self.cases = self.results = 0
        self.slowest_s = 0.0
        self.failures: Counter[str] = Counter()

    def next(self) -> None:
        """Run one case."""
        number, self.number = self.number, self.number + 1
        chosen = FORMATS[self.format] if self.format else format_of(number)
        self.cases += 1
        if self.cases == _WARM_UP:
            # What lives now lives to the end; looking at it again and again takes a seventh of the
            # time.
            gc.collect()
            gc.freeze()
        began = time.process_time()
        signal.alarm(6 * TIME_LIMIT_S)  # the machine may be busy: processor time counts, see below
        try:
            files = make_case(chosen, self.seed, number)
            self.results += check(chosen, files, exports=number % _EXPORTS_EVERY == 0)
            elapsed_s = time.process_time() - began
            self.slowest_s = max(self.slowest_s, elapsed_s)
            if elapsed_s > TIME_LIMIT_S:
                raise TooSlow(f"{elapsed_s:.1f} s")
        except (Exception, TooSlow) as error:
            self._fail(chosen.name, number, error)
        finally:
            signal.alarm(0)

    def _fail(self, name: str, number: int, error: BaseException) -> None:
        kind = _kind_of(error)
        self.failures[kind] += 1
        if self.failures[kind] == 1:
            repeat = f"python -m tests.fuzz --format {name} --seed {self.seed} --case {number}"
            print(f"\n{kind}\n  {repeat}", flush=True)

    def figures(self) -> str:
        """What came of the cases so far."""
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"{self.cases:,} cases, {self.results:,} results, "
            f"{sum(self.failures.values())} failures of {len(self.failures)} kinds, "
            f"slowest {self.slowest_s:.1f} s, peak {peak_mb:,.0f} MB"
        )


def _kind_of(error: BaseException) -> str:
    """The same for the same bug: what was raised, and the innermost line of the package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tb_perfadvisor/" in frame.filename] or frames
    where = ours[-1] if ours else None
    text = str(error).strip().splitlines()
    place = (
        ""
        if where is None
        else f" at {where.filename.split('/tb_perfadvisor/')[-1]}:{where.lineno}"
    )
    said = re.sub(r"0x[0-9a-f]+|\d+", "#", " | ".join(text[-4:])[-300:])
    return f"{type(error).__name__}{place}: {said}"


def _keep(files: Files, folder: Path) -> None:
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)


def _too_slow(signum: int, frame: FrameType | None) -> None:
    raise TooSlow(f"longer than {6 * TIME_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
