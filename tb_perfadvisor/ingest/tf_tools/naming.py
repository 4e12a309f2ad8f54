"""What the names of tool results say: `HOST.overview_page.pb`, `HOST.pod_viewer.json.gz`."""

from __future__ import annotations

import re

from msgspec import Struct

_NAME = re.compile(
    r"^(?:(?P<host>.+)\.)?(?P<tool>overview_page|input_pipeline|pod_viewer|tensorflow_stats"
    r"|kernel_stats|memory_profile|memory_viewer|op_profile)\.(?P<form>pb|json)(?:\.gz)?$"
)
# Only these hold the times of steps, without which there is nothing to share out.
_WITH_STEPS = frozenset({"overview_page", "input_pipeline", "pod_viewer"})

ALL_HOSTS = "ALL_HOSTS"
"""Stands in place of a host on results that several hosts' recordings were merged into."""


class ToolFile(Struct, frozen=True):
    """A result's name, taken apart."""

    host: str
    tool: str
    form: str
    """`pb` or `json`."""

    @property
    def may_hold_steps(self) -> bool:
        """Whether the tool's results have the times of steps."""
        return self.tool in _WITH_STEPS


def tool_file(path: str) -> ToolFile | None:
    """What a file's name says; None when it is no tool's result."""
    match = _NAME.match(path.rsplit("/", 1)[-1])
    return ToolFile(match["host"] or "", match["tool"], match["form"]) if match else None
