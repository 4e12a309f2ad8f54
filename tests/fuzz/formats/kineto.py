"""Kineto traces of PyTorch: drawn ones, those of several ranks, and recorded ones."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import any_drawing, written
from tests.fuzz.json_changes import change_json

_DEMO_LOGS = Path(__file__).resolve().parents[3] / "demo_logs"
# Larger ones take longer than all others together.
_MAX_RECORDED_BYTES = 40_000
_WORLDS = (2, 3, 8)
_MAX_RANKS = 3


def _choose_drawn(random: Random) -> Files:
    data = written("kineto", any_drawing(random), "pytorch")
    return (SeedFile("run/worker0.pt.trace.json", data, change_json),)


def _choose_ranks(random: Random) -> Files:
    number = any_drawing(random)
    world = _WORLDS[number % len(_WORLDS)]
    return tuple(
        SeedFile(
            f"run/rank{rank}.pt.trace.json",
            written("kineto", number, "pytorch", rank, world),
            change_json,
        )
        for rank in range(min(world, _MAX_RANKS))
    )


@cache
def _recordings() -> Files:
    return tuple(
        SeedFile(
            f"run/{path.name.removesuffix('.gz')}",
            _shortened(gzip.decompress(path.read_bytes())),
            change_json,
        )
        for path in sorted(_DEMO_LOGS.glob("**/*.gz"))
    )


def _shortened(data: bytes) -> bytes:
    """A recording without its later events."""
    recorded = json.loads(data)
    events = recorded["traceEvents"]
    keep = len(events) * _MAX_RECORDED_BYTES // max(len(data), _MAX_RECORDED_BYTES)
    recorded["traceEvents"] = events[: max(keep, 1)]
    return json.dumps(recorded).encode()


def _choose_recorded(random: Random) -> Files:
    return (random.choice(_recordings()),)


DRAWN = Format("kineto", _choose_drawn, weight=2)
RANKS = Format("kineto-ranks", _choose_ranks)
RECORDED = Format("kineto-recorded", _choose_recorded)
