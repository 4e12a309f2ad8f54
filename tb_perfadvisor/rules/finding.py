"""What a rule yields: findings with savings, remedies and evidence."""

from __future__ import annotations

import math
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.trace.intervals import Intervals, total_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif import Fix

Severity = Literal["high", "medium", "low"]
Basis = Literal["measured", "simulated", "modeled", "heuristic"]
Unit = Literal["", "ns", "bytes", "share", "count", "bytes/s", "flop/s"]
Cell = str | int | float | bool | None


HIGH_SHARE = 0.10
MEDIUM_SHARE = 0.03


def severity_by_share(share: float) -> Severity:
    """How grave it is to lose a share of the time."""
    if share >= HIGH_SHARE:
        return "high"
    return "medium" if share >= MEDIUM_SHARE else "low"


class Events(Struct, frozen=True):
    """Events of one worker's trace, the costliest first."""

    title: str
    rows: Int32
    worker: int
    """Index into the run's traces."""
    cost_ns: Int64 | None = None
    """What each costs, by which they are ordered, if that is not how long it takes."""


class Span(Struct, frozen=True):
    """A stretch of time, with what it shows."""

    title: str
    worker: int
    start_ns: int
    end_ns: int
    track: str
    note: str


class Column(Struct, frozen=True):
    """A column of a table."""

    key: str
    label: str
    unit: Unit = ""


class Table(Struct, frozen=True):
    """A table; the report caps its rows and says how many it left out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names_instance: bool = False
    """Whether its first row names what the finding is mostly about."""


class Series(Struct, frozen=True):
    """A value over steps or time."""

    title: str
    x_unit: Unit
    unit: Unit
    points: tuple[tuple[float, float], ...]


Evidence = Events | Span | Table | Series


_BELOW_ONE = math.nextafter(1.0, 0.0)
_Amount = TypeVar("_Amount", int, float)


def ordered_range(
    low: _Amount, expected: _Amount, high: _Amount, most: _Amount
) -> tuple[_Amount, _Amount, _Amount]:
    """Bounds and an estimate between 0 and `most`, none larger than the next."""
    high = min(max(high, 0), most)
    expected = min(max(expected, 0), high)
    return min(max(low, 0), expected), expected, high


class Saving(Struct, frozen=True):
    """Wall-clock time that a change would save, as totals over the used steps.

    `claims` are the intervals of the reference worker that the saving is taken from. Findings
    that claim the same time share it, so that it is never counted twice. `fix` says what the
    change does to the program: with it the engine replays the steps, and the replayed saving
    replaces the expected one.
    """

    low_ns: int
    expected_ns: int
    high_ns: int
    claims: Intervals
    basis: Basis
    fix: tuple[Fix, ...] = ()
    outside_claims_ns: int = 0
    """The part of `high_ns` that is not taken from the claims: the rest of the step may get faster,
    too, because it no longer shares its cores. On the CPU, the engine raises it."""
    unproven_ns: int = 0
    """The part of `expected_ns` that a replay of `fix` does not show."""
    recording_ns: int = 0
    """The cost of recording, which a replay of `fix` saves and the change does not. The engine sets
    it, and subtracts it from `expected_ns`."""
    realized_share: float = 1.0
    """The part that programs realize of what a replay of `fix` saves."""
    elsewhere_ns: int = 0
    """Time that the change saves and costs elsewhere, which a replay of `fix` does not show. It is
    subtracted from `expected_ns`: by the rule, and by the engine from what the replay saves."""
    is_unknown: bool = False
    """Whether nothing tells how much of `high_ns` to expect. Such a finding is shown without an
    estimate and ranks by its bounds, so its summary should say what it may save at most."""
    unpriced_ns: int = 0
    """The part of `high_ns` of which nothing tells how much to expect, for savings of which
    something is known. If it is more than half, the whole saving counts as unknown."""
    priced: Intervals | None = None
    """The part of `claims` that `expected_ns` is taken from; by default, all of it. What is left
    is free for findings about other causes of the same idle time."""
    may_cost_ns: int = 0
    """How much longer the change may make the steps. The engine sets it, and subtracts it from
    `low_ns`, which is never below 0 otherwise."""

    def __post_init__(self) -> None:
        """Keep the estimate a range within the time that it claims, whatever a file holds.

        The three come from different events, which contradict each other in a damaged file. Then
        what is claimed limits `high_ns`, which limits `expected_ns`, which limits `low_ns`.
        """
        most_ns = self.claimed_ns + self.outside_claims_ns
        low_ns = self.low_ns + self.may_cost_ns
        low, expected, high = ordered_range(low_ns, self.expected_ns, self.high_ns, most_ns)
        force_setattr(self, "low_ns", low - self.may_cost_ns)
        force_setattr(self, "expected_ns", expected)
        force_setattr(self, "high_ns", high)

    @property
    def claimed_ns(self) -> int:
        """The time that the saving is taken from."""
        return total_ns(self.claims)

    @property
    def expected_from(self) -> Intervals:
        """The time that the expected saving is taken from."""
        return self.claims if self.priced is None else self.priced

    @property
    def has_no_price(self) -> bool:
        """Whether most of what it may save is unknown, so that only its bounds are known."""
        return self.is_unknown or 2 * self.unpriced_ns > self.high_ns


class LargerBatch(Struct, frozen=True):
    """A batch that takes about as long: more samples in the same time, not less time per step."""

    rows: int
    """Rows that each step processes now: samples, or positions of all samples."""
    more_rows: int
    low_share: float
    """Share of the time per row that a batch of `more_rows` saves at least."""
    expected_share: float
    high_share: float

    def __post_init__(self) -> None:
        """Keep the estimate a range below 1, as that of a `Saving`."""
        low, expected, high = ordered_range(
            self.low_share, self.expected_share, self.high_share, _BELOW_ONE
        )
        force_setattr(self, "low_share", low)
        force_setattr(self, "expected_share", expected)
        force_setattr(self, "high_share", high)


class MemorySaving(Struct, frozen=True):
    """By how much a change lowers the peak of allocated or of reserved device memory."""

    bytes: int
    peak_bytes: int
    """The peak as recorded."""

    @property
    def share(self) -> float:
        """Of the peak."""
        return self.bytes / self.peak_bytes if self.peak_bytes else 0.0


class Finding(Struct, frozen=True):
    """One piece of advice about this program; the rule's docstring adds what holds for all."""

    summary: str
    saving: Saving | None = None
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    ranks: tuple[int, ...] = ()
    severity: Severity | None = None
    """For findings without a saving. The others are rated by theirs, but never above this."""
    title: str = ""
    """What is special about this finding, in place of the rule's title."""
    instance: str = ""
    """What it is about in this program: a name, a line or a number, to follow the rule's title and
    a colon. By default, what the evidence names."""
    larger_batch: LargerBatch | None = None
    """For findings that bring more samples in the same time. They have no `saving`."""
    memory: MemorySaving | None = None
    """For findings that lower the peak of memory. They have no `saving`."""
    run_share: float = 0.0
    """What it costs of the whole run's time, if the recorder's timers show that and not the
    recorded steps. Such findings have no `saving`, and rank by it."""
    bounds: Saving | None = None
    """What it may save, if nothing tells how much of that to expect. The engine moves a saving
    without a price here."""

    @property
    def is_lossy(self) -> bool:
        """Whether all of its advice costs accuracy or information."""
        return bool(self.remedies) and all(remedy.is_lossy for remedy in self.remedies)


def costliest(title: str, worker: int, rows: Int32, cost: Int64) -> Events:
    """Events ordered by cost in nanoseconds, the costliest first.

    `worker` is an index into the run's traces.
    """
    order = np.argsort(-cost, kind="stable")
    return Events(title, rows[order], worker, cost[order].astype(np.int64))
