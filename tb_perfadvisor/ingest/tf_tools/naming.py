"""Parses names of tool results: `HOST.overview_page.pb`, `HOST.pod_viewer.json.gz`."""

from __future__ import annotations

import re

from msgspec import Struct

_NAME = re.compile(
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

    @property
    def may_hold_steps(self) -> bool:
        """Whether results of the tool contain step times."""
        return self.tool in _WITH_STEPS


def tool_file(path: str) -> ToolFile | None:
    """Parse a path; None if it does not name a tool's result."""
    match = _NAME.match(path.rsplit("/", 1)[-1])
    return ToolFile(match["host"] or "", match["tool"], match["form"]) if match else None
