"""What launched work waits for, as far as the profile tells."""

from __future__ import annotations

import re

from tb_perfadvisor.rules.evidence.instance import short_annotation, short_name
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals.host.queued_waits import QueuedWait, QueuedWaits

_NOISE = re.compile(r"^void\s+|\(anonymous namespace\)::")
_PURPOSE = re.compile(r"\(\w+\)$")
"""`Stream #142(Compute)`."""
# A space precedes the parentheses in the names of copies: `Memset (Device)`.
_ARGUMENTS = re.compile(r"<|(?<! )\(")


def wait_table(found: QueuedWaits) -> Table:
    """Idle time with work queued, by what waits."""
    return Table(
        "Work that waits on the device",
        (
            Column("stream", "Stream"),
            Column("name", "Waiting work"),
            Column("launched_by", "Launched by"),
            Column("host_call", "Host meanwhile"),
            Column("annotation", "Annotation"),
            Column("count", "Count", "count"),
            Column("idle_ns", "Idle", "ns"),
        ),
        tuple(
            (
                wait.stream,
                wait.event,
                wait.launched_by or None,
                wait.host_call or None,
                wait.annotation or None,
                wait.count,
                wait.idle_ns,
            )
            for wait in found.waits
        ),
    )


def describe_wait(wait: QueuedWait) -> str:
    """`Memset (Device) on stream 7, launched by cudaGraphLaunch, under forward`."""
    parts = [f"{_brief(wait.event)} on {wait.stream}"]
    # TensorFlow names launch calls after their kernels.
    if wait.launched_by not in ("", wait.event):
        parts.append(f"launched by {_brief(wait.launched_by)}")
    if wait.host_call not in ("", wait.event):
        parts.append(f"while the host is in {_brief(wait.host_call)}")
    if wait.annotation:
        parts.append(f"under {short_annotation(wait.annotation)}")
    return ", ".join(parts)


def wait_in_short(wait: QueuedWait) -> str:
    """`Memset (Device) on stream 7, under forward`: what fits into a headline."""
    where = f", under {short_annotation(wait.annotation)}" if wait.annotation else ""
    return f"{waiting_work(wait)}{where}"


def waiting_work(wait: QueuedWait) -> str:
    """`fill on stream 7`, without namespaces, and without what TensorFlow uses a stream for."""
    event = short_name(wait.event).rpartition("::")[2]
    return f"{event} on {_PURPOSE.sub('', wait.stream)}"


def _brief(name: str) -> str:
    """A kernel's name without its template arguments and parameters, which can take lines."""
    return _ARGUMENTS.split(_NOISE.sub("", name), maxsplit=1)[0] or name
