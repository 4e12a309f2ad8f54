"""A log directory that someone put links into, which lead to what others keep for themselves."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor.testing import draw
from tests.support.compile_logs import compiled
from tests.support.event_files import write_scalar
from tests.support.kineto_files import event, to_bytes
from tests.support.memory_snapshots import Snapshot
from tests.support.writers import write_kineto

SECRET = "their_own"
"""Part of every name in what the links lead to."""
LINKS = (
    "run/memory_snapshot.pickle",
    "run/dedicated_log_torch_trace_ab12cd34.log",
    "run/events.out.tfevents.1.host",
    "run/other.1700000000000000000.pt.trace.json",
)
DIRECTORY = "elsewhere"
_PROFILE = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""


def shared_logdir(parent: Path) -> Path:
    """Make a log directory with a profile of a run, and with links out of it.

    Args:
        parent: Gets the log directory and, beside it, what the links lead to.
    """
    outside, logs = parent / "outside", parent / "logs"
    _write(outside / "snapshot", _snapshot())
    _write(outside / "log", compiled("0/0", SECRET, 7, entire_frame_compile_time_s=3.0))
    write_scalar(outside, f"{SECRET}/loss", {step: 1.7e9 + step for step in range(40)})
    (outside / "events.out.tfevents.1.host").rename(outside / "events")
    trace = to_bytes([event(f"{SECRET}::operator", 1, 5)])
    _write(outside / "trace", trace)
    _write(outside / "runs" / "r" / "w.1700000000000000000.pt.trace.json", trace)
    _write(logs / "run" / "worker0.1700000000000000000.pt.trace.json", write_kineto(draw(_PROFILE)))
    for link, target in zip(LINKS, ("snapshot", "log", "events", "trace"), strict=True):
        (logs / link).symlink_to(outside / target)
    (logs / DIRECTORY).symlink_to(outside / "runs")
    return logs


def _snapshot() -> bytes:
    stack = [{"filename": f"/home/me/{SECRET}.py", "line": 3, "name": SECRET}]
    made = Snapshot()
    segment = made.segment(4 << 30, stack=stack)
    made.allocate(segment, 3 << 30, stack).holds(segment, segment, 3 << 30, stack)
    return made.fail(2 << 30, 1 << 30, stack).pickled()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
