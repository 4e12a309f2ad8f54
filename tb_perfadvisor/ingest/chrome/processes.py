"""Where the events of a process belong: its plane, and for some also their line.

The profilers of TensorFlow 2.2 and later and of JAX export one process per plane, under the
plane's name, and one thread per line. Before, and in the timelines of TensorFlow 1, each stream
of a GPU is a process of its own, whose threads are lanes without meaning, and so is what the
executor of each device did on the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

_HOST: Final = "/host:CPU"
_NAMED: Final = re.compile(
    rb'"name"\s*:\s*"(?:\\?/job:[^"\s]*)?\\?/(?:host:[A-Z]|device:[A-Z_]+:\d|[cg]pu:\d)'
)
_PLANE: Final = re.compile(r"(/(?:host|device):\S.*?)(?: Compute| \([^()]*\))?$")
_STREAM: Final = re.compile(
    r"(?i)(?:/job:\S*)?/(?:device:)?gpu:(\d+)(?:/context#\d+)?/stream[:#](\d+)"
    r"(?:[:<](\w+)>?)?(?: Compute)?$"
)
_EXECUTOR: Final = re.compile(r"(?i)/job:\S*/(?:device:)?(\w+:\d+)(?: Compute)?$")
# Tensors and allocators are no work; what the others hold stands in the numbered streams again, or
# is no work of a stream.
_NO_WORK: Final = re.compile(
    r".* Tensors$|Allocators$|.*/(?:memcpy|sync|stream:(?:all)?)(?: Compute)?$"
)


class Place(Struct, frozen=True):
    """Where the events of a process belong."""

    plane: str
    stream: str = ""
    """The line of all its events; empty where each thread is a line."""
    executor: str = ""
    """The device whose executor it is; its threads are lanes."""

    @property
    def is_old(self) -> bool:
        """Whether only TensorFlow 2.1 and before writes such processes."""
        return bool(self.stream or self.executor)

    def line(self, thread: Any, name: str) -> str:
        """What the line of a thread is called: by its name, else by its number."""
        if self.executor:
            return f"executor of {self.executor}, lane {thread}"
        return self.stream or name or f"thread {thread}"


def has_known_process(head: bytes) -> bool:
    """Whether JSON names a process as the exports of TensorFlow and JAX do."""
    return b'"process_name"' in head and _NAMED.search(head) is not None


def is_no_work(name: str) -> bool:
    """Whether nothing is lost without a process."""
    return _NO_WORK.match(name) is not None


def collective_rows_of(process_names: Mapping[Any, str]) -> dict[Any, Place]:
    """The place of each process, by its number; those that hold no work of a plane have none."""
    return {pid: place for pid, name in process_names.items() if (place := _place(name))}


def _place(name: str) -> Place | None:
    stream = _STREAM.match(name)
    if stream:
        line = f"Stream #{stream[2]}({stream[3]})" if stream[3] else f"Stream #{stream[2]}"
        return Place(f"/device:GPU:{stream[1]}", stream=line)
    if is_no_work(name):
        return None
    executor = _EXECUTOR.match(name)
    if executor:
        return Place(_HOST, executor=executor[1].upper())
    plane = _PLANE.match(name)
    return Place(plane[1]) if plane else None
