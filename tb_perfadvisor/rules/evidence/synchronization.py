"""Where and why a program waits for the device, and what launched work waits for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.finding import Cell, Column, Events, Saving, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.queued_waits import QueuedWait, QueuedWaits
from tb_perfadvisor.signals.host.waits import (
    Mask,
    WaitCallSite,
    awaited_values,
    is_whole_wait,
    wait_prices,
)
from tb_perfadvisor.trace import CopyDirection
from tb_perfadvisor.trace.names import short_annotation, short_name
from tb_perfadvisor.trace.tables import Int64


class SynchronizationCause(Struct, frozen=True):
    """A known cause of a wait."""

    label: str
    """What the program does, as the end of a sentence."""
    matches: Callable[[WaitCallSite], bool]
    changes: tuple[str, ...]
    """What to change instead."""


def cause_of(site: WaitCallSite) -> SynchronizationCause | None:
    """The first cause that matches a call site; None if it is unknown."""
    return next((cause for cause in CAUSES if cause.matches(site)), None)


def changes_for(sites: tuple[WaitCallSite, ...], most: int) -> tuple[str, ...]:
    """What to change against the causes of the call sites, in their order.

    The costliest sites come first, and at most `most` causes get advice.
    """
    known = (cause_of(site) for site in sites)
    labels = list(dict.fromkeys(cause.label for cause in known if cause is not None))[:most]
    changes = [
        change
        for label in labels
        for cause in CAUSES
        if cause.label == label
        for change in cause.changes
    ]
    return tuple(dict.fromkeys(changes))


def _has(*operators: str) -> Callable[[WaitCallSite], bool]:
    return lambda site: not set(operators).isdisjoint(site.operators)


def _copies(direction: CopyDirection) -> Callable[[WaitCallSite], bool]:
    return lambda site: site.copies == direction and "aten::copy_" in site.operators


def _reads_jax_array(functions: str) -> Callable[[WaitCallSite], bool]:
    """Whether the frame around a wait is one of some functions of JAX that read an array."""
    pattern = regex(rf"^\$(array|array_methods|api)\.py:\d+ ({functions})$")
    return lambda site: bool(pattern.match(site.frame))


def _is_deterministic_gather(site: WaitCallSite) -> bool:
    # A gather that is not deterministic scatters with atomics and needs nothing from the host.
    from_host = site.copies == CopyDirection.HOST_TO_DEVICE
    return site.node.startswith("GatherBackward") and (
        from_host or "aten::index_put_" in site.operators
    )


_indexes = _has("aten::index", "aten::index_put_", "aten::_index_put_impl_")


CAUSES: tuple[SynchronizationCause, ...] = (
    SynchronizationCause(
        "torch.gather's deterministic backward",
        _is_deterministic_gather,
        ("indexing-without-gather",),
    ),
    SynchronizationCause(
        "GradScaler's check for infinities",
        lambda site: site.checks_gradients or "amp/grad_scaler.py(" in site.frame,
        ("bfloat16", "no-loss-scaling", "fused-optimizer"),
    ),
    SynchronizationCause(
        "printing tensors",
        lambda site: "torch/_tensor_str.py(" in site.frame,
        ("no-printed-tensors",),
    ),
    SynchronizationCause(
        "float(), int() or .item()",
        _reads_jax_array(r"__(float|int|index|complex)__|tolist|_item"),
        ("read-arrays-rarely",),
    ),
    SynchronizationCause(
        "arrays as conditions (if x:)",
        _reads_jax_array("__bool__"),
        ("device-decisions",),
    ),
    SynchronizationCause(
        "printing arrays",
        _reads_jax_array("__(format|str|repr)__"),
        ("read-arrays-rarely",),
    ),
    SynchronizationCause(
        "jax.device_get()", _reads_jax_array("device_get"), ("read-arrays-rarely",)
    ),
    SynchronizationCause(
        "reading results (float(), jax.device_get(), np.asarray())",
        lambda site: "np.asarray(jax.Array)" in site.calls,
        ("read-arrays-rarely",),
    ),
    SynchronizationCause(
        "block_until_ready()",
        lambda site: any("block_until_ready" in call for call in site.calls),
        ("no-block-until-ready",),
    ),
    SynchronizationCause(
        "masked_select",
        _has("aten::masked_select"),
        ("sum-without-selection",),
    ),
    SynchronizationCause(
        "x[mask]",
        lambda site: _indexes(site) and "aten::nonzero" in site.operators,
        ("masks-without-indexing",),
    ),
    SynchronizationCause(
        "indices on the host",
        lambda site: _indexes(site) and site.copies == CopyDirection.HOST_TO_DEVICE,
        ("indices-on-device",),
    ),
    SynchronizationCause(
        "the backward of indexing (index_put_)",
        lambda site: bool(site.node) and _indexes(site),
        ("index-select",),
    ),
    SynchronizationCause(
        "nonzero",
        _has("aten::nonzero"),
        ("static-nonzero",),
    ),
    SynchronizationCause(
        "unique",
        _has("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
        ("unique-on-host",),
    ),
    SynchronizationCause(
        "repeat_interleave",
        _has("aten::repeat_interleave"),
        ("known-length",),
    ),
    SynchronizationCause(
        "tensors as conditions (if x:)",
        _has("aten::is_nonzero"),
        ("device-decisions",),
    ),
    SynchronizationCause(
        ".item()",
        _has("aten::item", "aten::_local_scalar_dense"),
        ("read-rarely", "overlapped-schedule"),
    ),
    SynchronizationCause(
        ".cpu()",
        _copies(CopyDirection.DEVICE_TO_HOST),
        ("results-to-pinned-memory", "overlapped-schedule"),
    ),
    SynchronizationCause(
        "host tensors (.to(device))",
        _copies(CopyDirection.HOST_TO_DEVICE),
        ("constants-on-device", "pinned-memory"),
    ),
    SynchronizationCause(
        "cudaDeviceSynchronize()",
        lambda site: not site.operators and site.calls == ("cudaDeviceSynchronize",),
        ("timing-with-events",),
    ),
)


_REST = "less: idle time that has other causes, too"


def costliest_waits(signals: Signals, chosen: Mask, saving: Saving) -> Events:
    """The waits that cost most; the longest ones if none costs any by itself.

    `chosen` has the shape of the worker's `synchronizations`, and `saving` is what
    `saving_without_waits` says of them.
    """
    waits = signals.synchronizations
    is_priced = saving.priced is not None
    cost = wait_prices(signals, chosen).expected_ns if is_priced else waits.induced_ns
    counted = chosen & is_whole_wait(signals)
    shown = counted & (cost > 0)
    if not shown.any():
        shown, cost = counted, waits.duration_ns
    return costliest("Costliest waits", signals.worker, waits.row[shown], cost[shown])


def waits_by_call_site(
    title: str,
    signals: Signals,
    sites: tuple[WaitCallSite, ...],
    chosen: Mask,
    saving: Saving,
) -> Table:
    """Waits by call site, without the columns that are empty in this profile.

    If the steps were replayed, the last columns are the prices of the waits. Otherwise the last one
    is the idle time that they induce, and a row says what the finding expects beside it.

    `chosen` tells which `synchronizations` belong to the sites, and `saving` is what
    `saving_without_waits` says of them.
    """
    values, prices = awaited_values(signals), wait_prices(signals, chosen)
    is_priced = saving.priced is not None

    def total_of(site: WaitCallSite, column: Int64) -> int:
        return int(column[np.searchsorted(values.row, site.rows)].sum())

    def cost_ns(site: WaitCallSite) -> int:
        return total_of(site, prices.expected_ns) if is_priced else site.induced_ns

    sites = tuple(sorted(sites, key=lambda site: -cost_ns(site)))
    descriptions: list[tuple[Column, list[Cell]]] = [
        (Column("cause", "What waits"), [_label(site) for site in sites]),
        (Column("node", "Backward of"), [site.forward or site.node or None for site in sites]),
        (Column("operator", "Operator"), [_operator(site) for site in sites]),
        (Column("call", "Call"), [" + ".join(site.calls) for site in sites]),
        (Column("module", "Module"), [site.module for site in sites]),
        (Column("source", "Source line"), [site.line for site in sites]),
    ]
    sums: list[tuple[Column, list[Cell]]] = [
        (Column("count", "Count", "count"), [site.count for site in sites]),
        (Column("duration_ns", "In the call", "ns"), [site.duration_ns for site in sites]),
        (
            Column("host_code_ns", "Host code before the next launch, mean", "ns"),
            [values.mean_host_code_ns(site.rows) for site in sites],
        ),
    ]
    if is_priced:
        for key, label, price_ns in (
            ("idle_ns", "Idle until the next wait", prices.idle_ns),
            ("if_needed_ns", "Saved if values are needed", prices.if_needed_ns),
            ("if_free_ns", "Saved if not", prices.if_free_ns),
            ("expected_ns", "Expected", prices.expected_ns),
        ):
            sums.append((Column(key, label, "ns"), [total_of(site, price_ns) for site in sites]))
    else:
        sums.append((Column("induced_ns", "Idle induced", "ns"), [cost_ns(s) for s in sites]))
    rest_ns = saving.expected_ns - sum(map(cost_ns, sites))
    if rest_ns:
        rest: dict[str, Cell] = {
            "cause": _REST,
            "count": 0,
            "duration_ns": 0,
            "induced_ns": rest_ns,
        }
        for column, cells in (*descriptions, *sums):
            cells.append(rest.get(column.key))
    columns = [
        (column, cells)
        for column, cells in (*descriptions, *sums)
        if any(cell is not None for cell in cells)
    ]
    rows = zip(*(cells for _, cells in columns), strict=True)
    return Table(title, tuple(column for column, _ in columns), tuple(rows))


def main_causes(sites: tuple[WaitCallSite, ...]) -> str:
    """The one or two known causes that cost most idle time, as a clause; empty if unknown."""
    cost: dict[str, int] = {}
    for site in sites:
        label = _label(site)
        if label is not None:
            cost[label] = cost.get(label, 0) + site.induced_ns
    if len(cost) == 1 and all(map(_label, sites)):
        return f", by {next(iter(cost))}"
    labels = sorted(cost, key=lambda label: -cost[label])[:2]
    return f", mostly {' and '.join(labels)}" if labels else ""


def if_not_needed(saving: Saving, signals: Signals) -> str:
    """What the waits cost if the program needs none of the values; empty if that is expected."""
    if saving.high_ns == saving.expected_ns:
        return ""
    most = per_step(saving.high_ns, signals)
    return f"; up to {most} if the host code after them does not need what they copy"


def _label(site: WaitCallSite) -> str | None:
    cause = cause_of(site)
    return cause.label if cause is not None else None


def _operator(site: WaitCallSite) -> str | None:
    """The operator that the program called, and the one inside it that waits."""
    if not site.operators:
        return None
    inner, outer = site.operators[0], site.operators[-1]
    return outer if inner == outer else f"{outer} > {inner}"


_NOISE = regex(r"^void\s+|\(anonymous namespace\)::")
_PURPOSE = regex(r"\(\w+\)$")
"""`Stream #142(Compute)`."""
# A space precedes the parentheses in the names of copies: `Memset (Device)`.
_ARGUMENTS = regex(r"<|(?<! )\(")


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
