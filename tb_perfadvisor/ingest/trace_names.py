"""Parses the names of trace files: worker, rank, host and time."""

from __future__ import annotations

import datetime
import re

from msgspec import Struct

from tb_perfadvisor.patterns import regex

_ENDINGS = (".gz", ".json", ".trace", ".pt", ".pb", ".xplane")
# tensorboard_trace_handler: WORKER.TIMESTAMP.pt.trace.json, in ms, in newer versions in ns.
_HANDLER = regex(r"^(?P<worker>.+)\.(?P<time>\d{10}|\d{13}|\d{16}|\d{19})$")
# rank-34.Jul_15_10_52_41.1074 (worker, date without year, process).
_DATED = regex(r"^(?P<worker>.+)\.(?P<date>[A-Z][a-z]{2}_\d{2}_\d{2}_\d{2}_\d{2})\.\d+$")
# SGLang: 1782843274.7730265-TP-0-DECODE.
_SGLANG = regex(r"^(?P<time>\d{10}\.\d+)-TP-(?P<rank>\d+)(?P<rest>.*)$")
_DIGITS = regex(r"\d+")
# The handler's default worker is HOST_PROCESS.
_HOST_AND_PROCESS = regex(r"^(?P<host>.+)_\d+$")


class TraceName(Struct, frozen=True):
    """The parts of a trace file's name."""

    worker: str
    family: str
    """The worker without its rank: the same for all ranks of one recording."""
    rank: int | None
    host: str
    at_ns: int | None
    """When it was written, on the wall clock."""


def stem_of(path: str) -> str:
    """A file's name without directories and suffixes."""
    name = path.rsplit("/", 1)[-1]
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def parse_trace_name(path: str) -> TraceName:
    """Parse the name of a PyTorch trace; parts that it lacks are None or empty."""
    stem = stem_of(path)
    sglang = _SGLANG.match(stem)
    if sglang:
        seconds, fraction = sglang["time"].split(".")
        written_ns = int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))
        family = f"TP-*{sglang['rest']}"
        return TraceName(stem, family, int(sglang["rank"]), "", written_ns)
    worker = stem
    at_ns: int | None = None
    handler, dated = _HANDLER.match(stem), _DATED.match(stem)
    if handler:
        worker = handler["worker"]
        at_ns = int(handler["time"]) * 10 ** (19 - len(handler["time"]))
    elif dated:
        worker = dated["worker"]
        at_ns = _without_year(dated["date"])
    rank = rank_of_name(worker + ".")
    host = _HOST_AND_PROCESS.match(worker) if rank is None and handler else None
    family = worker
    if rank is not None:
        for run in _DIGITS.finditer(worker):
            if run[0].endswith(str(rank)):
                family = f"{worker[: run.end() - len(str(rank))]}*{worker[run.end() :]}"
                break
    return TraceName(worker, family, rank, host["host"] if host else "", at_ns)


def _without_year(date: str) -> int | None:
    """`Jul_15_10_52_41` in a leap year, good enough to compare such names."""
    try:
        parsed = datetime.datetime.strptime(f"2024_{date}", "%Y_%b_%d_%H_%M_%S")
    except ValueError:
        return None
    return int(parsed.replace(tzinfo=datetime.timezone.utc).timestamp()) * 10**9


def session_label(at_ns: int) -> str:
    """A time in the form of TensorFlow's session names, with milliseconds."""
    at = datetime.datetime.fromtimestamp(at_ns // 10**9, tz=datetime.timezone.utc)
    return f"{at:%Y_%m_%d_%H_%M_%S}.{at_ns // 10**6 % 1000:03d}"


def rank_of_name(name: str) -> int | None:
    """The rank in a file's name: `rank0.…`, `rank-34.…`, `…_rank_0.json`, `worker3.…`.

    `worker3` counts only as the whole first part of the name: other workers are named after
    host and process (`dc3b0e7228dd_851`).
    """
    found = re.search(r"(?:^|[^a-z])(?:rank|RANK|Rank)[-_. ]?(\d{1,7})(?!\d)", name)
    found = found or re.match(r"worker(\d{1,7})\.", name)
    return int(found.group(1)) if found else None
