"""Memory snapshots as pickles and as JSON, alone and beside a profile."""

from __future__ import annotations

import pickle
from functools import cache
from random import Random

from tests.fuzz.byte_changes import change_bytes
from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import any_drawing, written
from tests.fuzz.json_changes import change_json
from tests.fuzz.opcode_changes import change_instructions
from tests.fuzz.tree_changes import change_tree
from tests.support.memory_snapshots import Snapshot, frames

_WITH_PROFILE_SHARE = 0.2
_BYTES_SHARE = 0.2
_INSTRUCTIONS_SHARE = 0.4

_KEYS = (
    *("segments", "device_traces", "allocator_settings", "external_annotations", "blocks"),
    *("action", "addr", "size", "stream", "time_us", "frames", "device_free", "filename", "line"),
    *("name", "state", "address", "requested_size", "total_size", "device", "is_expandable"),
    *("stage", "history", "segment_type", "expandable_segments"),
)


def _change_pickle(data: bytes, random: Random) -> bytes:
    """The pickle with one to four changes to its values, or to its instructions."""
    if random.random() < _BYTES_SHARE:
        return change_bytes(data, random)
    if random.random() < _INSTRUCTIONS_SHARE:
        return change_instructions(data, random)
    root = pickle.loads(data)
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        change_tree(root, random, _KEYS)
    return pickle.dumps(root, random.choice((2, 3, 4, 5)))


@cache
def _snapshots() -> tuple[Snapshot, ...]:
    return _training(), _failing(), _emptying()


def _training() -> Snapshot:
    made = Snapshot()
    segment = made.segment(1 << 30)
    batch = frames(("/p/model.py", 3, "forward"), ("/p/train.py", 30, "main"))
    kept = frames(("/p/train.py", 12, "log"))
    for step in range(8):
        made.annotate(f"ProfilerStep#{step}").allocate(segment, 1 << 29, batch)
        at = segment + (1 << 29) + (step << 24)
        made.allocate(at, 1 << 24, kept).holds(segment, at, 1 << 24, kept)
        made.wait(1_000).free(segment, 1 << 29, batch)
    return made


def _failing() -> Snapshot:
    made = Snapshot(device=1)
    for _ in range(3):
        segment = made.segment(1 << 30)
        made.allocate(segment, 1 << 29).holds(segment, segment, 1 << 29)
    return made.fail(1 << 30, 1 << 28, frames(("/p/model.py", 3, "forward")))


def _emptying() -> Snapshot:
    made = Snapshot()
    emptied = frames(("/torch/cuda/memory.py", 200, "empty_cache"), ("/p/train.py", 9, "main"))
    for _ in range(12):
        segment = made.wait(100).segment(1 << 30)
        made.allocate(segment, 1 << 30).free(segment, 1 << 30).give_back(segment, emptied)
    return made


def _choose(random: Random) -> Files:
    made = random.choice(_snapshots())
    file = SeedFile("run/memory.pickle", made.pickled(), _change_pickle)
    if random.random() >= _WITH_PROFILE_SHARE:
        return (file,)
    profile = written("kineto", any_drawing(random), "pytorch")
    return (file, SeedFile("run/worker0.pt.trace.json", profile, change_json))


MEMORY_SNAPSHOTS = Format("memory-snapshot", _choose)
