"""What any of the findings of a report would save together, without reading the profile again.

The tab lets users tick findings. The model of an analysis has all that the combination needs: what
the findings save and claim, and the graph that their fixes are replayed on. It is stored with the
result, and answers later, in another process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.engine.analysis import Analysis, CombinedSaving
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, total_ns
from tb_perfadvisor.whatif import Fix, OtherRanks, Simulation, other_ranks, simulation

# A finding adds to those before it: if its fix was simulated, what simulating all fixes so far
# saves beyond the fixes before. Otherwise it adds its saving times the share of the time it is
# taken from that no finding before has taken. The combined high end is the most that all findings,
# those without a price included, can save together: no finding more than its own high end, and no
# time twice.


class Priced(Protocol):
    """What may save time: a finding, or what is stored of one."""

    @property
    def saving(self) -> Saving | None:
        """None without a price."""

    @property
    def bounds(self) -> Saving | None:
        """What it may save, if it has no price."""


def limits_of(finding: Priced) -> Saving | None:
    """What a finding may save, whether it has a price or not."""
    return finding.bounds if finding.saving is None else finding.saving


class Combination:
    """Adds up savings one by one without counting any time twice."""

    def __init__(
        self,
        window_ns: int,
        saved_ns: Callable[[Sequence[Fix]], int] | None,
        most_ns: Callable[[Intervals], int],
    ) -> None:
        """Begin with nothing.

        `saved_ns` simulates what fixes save together; None if no simulation exists. `most_ns` is
        the most that can be saved by findings that claim some intervals.
        """
        self._window_ns, self._saved_ns, self._most_ns = window_ns, saved_ns, most_ns
        self._taken: Intervals = EMPTY
        self._not_simulated: Intervals = EMPTY
        self._limits: list[Saving] = []
        self._fixes: list[Fix] = []
        self._saved_by_fixes = 0
        self._low = self._expected = self._may_cost = 0

    @property
    def combined(self) -> CombinedSaving:
        """What the findings so far save together."""
        high_ns = min(max(_most_together_ns(self._limits), self._expected), self._window_ns)
        return CombinedSaving(self._low - self._may_cost, self._expected, high_ns)

    def add(self, finding: Priced) -> int:
        """Add a finding and return what it adds to the expected total."""
        limits, saving = limits_of(finding), finding.saving
        if limits is not None:
            self._limits.append(limits)
        if saving is None:
            return 0
        # What a change may cost, it costs once, however many findings advise it.
        self._may_cost = max(self._may_cost, saving.may_cost_ns)
        saving = replace(saving, low_ns=saving.low_ns + saving.may_cost_ns, may_cost_ns=0)
        if saving.fix and self._saved_ns is not None:
            marginal = self._add_simulated(saving, self._saved_ns)
        else:
            fresh, whole = _untaken(saving, self._taken)
            # Round down, so that time claimed twice is never saved twice.
            marginal = saving.expected_ns * fresh // whole
            self._low += saving.low_ns * fresh // whole
            self._not_simulated = join(self._not_simulated, saving.expected_from)
        self._taken = join(self._taken, saving.expected_from)
        marginal = min(marginal, max(self._most_ns(self._taken) - self._expected, 0))
        self._expected += marginal
        self._low = min(self._low, self._expected)
        return marginal

    def _add_simulated(self, saving: Saving, saved_ns: Callable[[Sequence[Fix]], int]) -> int:
        self._fixes += saving.fix
        before = self._saved_by_fixes
        self._saved_by_fixes = max(saved_ns(self._fixes), before)
        # The simulation knows what the fixes add to each other. Subtract only the time that
        # findings without a simulated fix have taken.
        fresh, whole = _untaken(saving, self._not_simulated)
        realized_ns = int(saving.realized_share * (self._saved_by_fixes - before))
        # In the order in which the finding's own saving is computed: alone, it adds just that.
        most_ns = min(realized_ns - saving.elsewhere_ns, total_ns(saving.expected_from))
        marginal = max(most_ns - saving.recording_ns, 0) * fresh // whole
        unclaimed, _ = _untaken(saving, self._taken)
        marginal += saving.unproven_ns * unclaimed // whole
        marginal = min(marginal, self._window_ns - self._expected)
        self._low += min(saving.low_ns * fresh // whole, marginal)
        return marginal


def _untaken(saving: Saving, taken: Intervals) -> tuple[int, int]:
    """How much of the time that a saving is taken from is not taken yet, and all of it."""
    source = saving.expected_from
    return total_ns(minus(source, taken)), max(total_ns(source), 1)


def _most_together_ns(limits: Sequence[Saving]) -> int:
    """The most that several changes save together.

    That is no more than the sum of their high ends, and no more than the time that they claim. This
    holds for any split of them in two, the sum for one part and the claimed time for the other.
    Those that may save nearly all of the time that they claim come first.
    """

    def inside_ns(saving: Saving) -> int:
        return saving.high_ns - saving.outside_claims_ns

    most_ns, claimed = 0, EMPTY
    for saving in sorted(limits, key=lambda each: -inside_ns(each) / max(each.claimed_ns, 1)):
        claimed = join(claimed, saving.claims)
        most_ns = min(most_ns + inside_ns(saving), total_ns(claimed))
    # Freed cores speed up the rest of the step only once, however many changes free them.
    return most_ns + max((saving.outside_claims_ns for saving in limits), default=0)


_FAST = 1
"""The level of compression: higher ones take several times as long for a tenth of the size."""


class Change(Struct, frozen=True):
    """What making a finding's change is worth."""

    saving: Saving | None
    bounds: Saving | None
    refines: int | None
    """The place of the finding that this one explains."""


class MeasuredSaving(Struct, frozen=True):
    """What trying a finding's change showed, as shares of the step."""

    place: int
    """Of the finding in the report."""
    low_share: float
    share: float
    high_share: float


class ChangeModel(Struct, frozen=True):
    """The changes of a report, in its order, and what decides what they save together."""

    window_ns: int
    steps: int
    """How many the window has."""
    changes: tuple[Change, ...]
    simulation: Simulation | None
    """None if no fix is replayed."""
    others: OtherRanks | None

    def combined(
        self, chosen: Collection[int], measured: Sequence[MeasuredSaving] = ()
    ) -> CombinedSaving:
        """What some of the changes save together, as totals over the window.

        What explains a finding adds nothing to it, and without it saves at most what it saves.

        `chosen` are the places of their findings in the report. What was `measured` counts in place
        of what was predicted.
        """
        changes = list(self.changes)
        for each in measured:
            changes[each.place] = self._measured(changes[each.place], each)
        parts = {place for place in chosen if changes[place].refines is not None}
        general = {at for place in parts if (at := changes[place].refines) is not None}
        alone = {place for place in parts if changes[place].refines not in chosen}
        combined = self._add_up(changes, (set(chosen) - parts) | alone)
        if not alone:
            return combined
        most = self._add_up(changes, (set(chosen) - parts) | general)
        expected_ns = min(combined.expected_ns, most.expected_ns)
        return CombinedSaving(
            min(combined.low_ns, expected_ns), expected_ns, min(combined.high_ns, most.high_ns)
        )

    def _add_up(self, changes: Sequence[Change], places: Collection[int]) -> CombinedSaving:
        union = Combination(self.window_ns, self._saved_ns, self._most_ns)
        for place in sorted(places):
            union.add(changes[place])
        return union.combined

    def _saved_ns(self, fixes: Sequence[Fix]) -> int:
        return 0 if self.simulation is None else self.simulation.saved_ns(*fixes)

    def _most_ns(self, claims: Intervals) -> int:
        return self.window_ns if self.others is None else self.others.most_saved_ns(claims)

    def _measured(self, change: Change, measured: MeasuredSaving) -> Change:
        """A change that counts with what was measured, taken from the same time."""
        limits = limits_of(change)
        if limits is None:
            return change
        low_ns, expected_ns, high_ns = (
            max(round(share * self.window_ns), 0)
            for share in (measured.low_share, measured.share, measured.high_share)
        )
        outside_ns = max(high_ns - limits.claimed_ns, 0)
        saving = Saving(
            low_ns, expected_ns, high_ns, limits.claims, "measured", outside_claims_ns=outside_ns
        )
        return replace(change, saving=saving)


def change_model(analysis: Analysis) -> ChangeModel:
    """The model of what the findings of an analysis save together."""
    signals, findings = analysis.signals, analysis.findings
    savings = [entry.finding.saving for entry in findings]
    # The graph takes long to build. It is there if a fix was replayed.
    is_replayed = any(saving is not None and saving.fix for saving in savings)
    replayed = simulation(signals) if is_replayed else None
    general = {entry.rule.id: at for at, entry in reversed(list(enumerate(findings)))}
    return ChangeModel(
        window_ns=signals.attribution.window_ns,
        steps=signals.steps.count,
        changes=tuple(
            Change(
                entry.finding.saving,
                entry.finding.bounds,
                None if entry.refines is None else general.get(entry.refines),
            )
            for entry in findings
        ),
        simulation=replayed if isinstance(replayed, Simulation) else None,
        others=other_ranks(signals),
    )


def encode_model(model: ChangeModel) -> bytes:
    """Encode as compressed MessagePack, with columns as bytes."""
    if model.simulation is not None:
        model = replace(model, simulation=replace(model.simulation, saved_by_fixes={}))
    return zlib.compress(msgspec.msgpack.encode(model, enc_hook=_encode_column), _FAST)


def decode_model(content: bytes) -> ChangeModel:
    """Decode what `encode_model` wrote."""
    try:
        return msgspec.msgpack.decode(
            zlib.decompress(content), type=ChangeModel, dec_hook=_decode_column
        )
    except (msgspec.MsgspecError, zlib.error, ValueError, TypeError) as error:
        raise PerfAdvisorError(
            "what the changes save cannot be read", hint="Analyze the capture again."
        ) from error


def _encode_column(column: Any) -> tuple[str, tuple[int, ...], bytes]:
    if not isinstance(column, np.ndarray):
        raise NotImplementedError(type(column))
    return column.dtype.str, column.shape, column.tobytes()


def _decode_column(_: type, encoded: Any) -> NDArray[Any]:
    dtype, shape, content = encoded
    column: NDArray[Any] = np.frombuffer(content, dtype=dtype).reshape(shape)
    return column
