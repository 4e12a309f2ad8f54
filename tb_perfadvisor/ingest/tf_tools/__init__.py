"""Results of TensorFlow's profiler before it recorded events: one file per tool and host.

Their names are `HOST.overview_page.pb`, `HOST.pod_viewer.json.gz`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tb_perfadvisor.ingest.captures import ProfileFile
from tb_perfadvisor.patterns import regex

_NAME = regex(
    r"^(?:(?P<host>.+)\.)?(?P<tool>overview_page|input_pipeline|pod_viewer|tensorflow_stats"
    r"|kernel_stats|memory_profile|memory_viewer|op_profile)\.(?P<form>pb|json)(?:\.gz)?$"
)
# Only these contain step times, which every analysis needs.
_WITH_STEPS = frozenset({"overview_page", "input_pipeline", "pod_viewer"})

ALL_HOSTS = "ALL_HOSTS"
"""The host name in results that merge the recordings of several hosts."""


class ToolFile(Struct, frozen=True):
    """The parts of a result's name."""

    host: str
    tool: str
    form: str
    """`pb` or `json`."""


def tool_file(path: str) -> ToolFile | None:
    """Parse a path; None if it does not name a tool's result."""
    match = _NAME.match(path.rsplit("/", 1)[-1])
    return ToolFile(match["host"] or "", match["tool"], match["form"]) if match else None


def may_hold_steps(file: ProfileFile) -> bool:
    """Whether results of its tool contain step times."""
    tool = tool_file(file.path)
    return tool is not None and tool.tool in _WITH_STEPS


def tools_of(files: Iterable[ProfileFile]) -> tuple[str, ...]:
    """The tools whose results some files are, in alphabetical order."""
    return tuple(sorted({tool.tool for file in files if (tool := tool_file(file.path))}))
