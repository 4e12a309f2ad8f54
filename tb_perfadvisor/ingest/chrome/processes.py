"""Maps processes of a Chrome export to planes, and for some also to lines.

JAX, and TensorFlow since 2.2, export each plane as a process with the plane's name, and each line
as a thread. Older versions export each stream of a GPU, and the executor of each device, as a
separate process whose threads have no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.patterns import regex

_HOST: Final = "/host:CPU"
_NAMED: Final = regex(
    rb'"name"\s*:\s*"(?:\\?/job:[^"\s]*)?\\?/(?:host:[A-Z]|device:[A-Z_]+:\d|[cg]pu:\d)'
)
_PLANE: Final = regex(r"(/(?:host|device):\S.*?)(?: Compute| \([^()]*\))?$")
_STREAM: Final = regex(
    r"(?i)(?:/job:\S*)?/(?:device:)?gpu:(\d+)(?:/context#\d+)?/stream[:#](\d+)"
    r"(?:[:<](\w+)>?)?(?: Compute)?$"
)
_EXECUTOR: Final = regex(r"(?i)/job:\S*/(?:device:)?(\w+:\d+)(?: Compute)?$")
# Tensors and allocators are not work. The other processes repeat numbered streams, or are not work
# of a stream.
_NO_WORK: Final = regex(r".* Tensors$|Allocators$|.*/(?:memcpy|sync|stream:(?:all)?)(?: Compute)?$")


class ProcessPlace(Struct, frozen=True):
    """Where the events of a process belong."""

    plane: str
    stream: str = ""
    """The line of all its events; empty if each thread is a line."""
    executor: str = ""
    """The device whose executor the process is; empty for other processes."""

    @property
    def is_old(self) -> bool:
        """Whether the process was written by TensorFlow 2.1 or older."""
        return bool(self.stream or self.executor)

    def line(self, thread: Any, name: str) -> str:
        """The line of a thread: its name, or its number if it has none."""
        if self.executor:
            return f"executor of {self.executor}, lane {thread}"
        return self.stream or name or f"thread {thread}"


def has_known_process(head: bytes) -> bool:
    """Whether JSON names a process like exports of TensorFlow and JAX."""
    return b'"process_name"' in head and _NAMED.search(head) is not None


def has_no_work(name: str) -> bool:
    """Whether a process contains no work, so that it can be ignored."""
    return _NO_WORK.match(name) is not None


def collective_rows_of(process_names: Mapping[Any, str]) -> dict[Any, ProcessPlace]:
    """The place of each process by its number; processes without work of a plane have none."""
    return {pid: place for pid, name in process_names.items() if (place := _place(name))}


def _place(name: str) -> ProcessPlace | None:
    stream = _STREAM.match(name)
    if stream:
        line = f"Stream #{stream[2]}({stream[3]})" if stream[3] else f"Stream #{stream[2]}"
        return ProcessPlace(f"/device:GPU:{stream[1]}", stream=line)
    if has_no_work(name):
        return None
    executor = _EXECUTOR.match(name)
    if executor:
        return ProcessPlace(_HOST, executor=executor[1].upper())
    plane = _PLANE.match(name)
    return ProcessPlace(plane[1]) if plane else None
