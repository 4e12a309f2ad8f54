"""What any of the findings of a report would save together, without reading the profile again.

The tab lets users tick findings. The model of an analysis has all that the combination needs: what
the findings save and claim, and the graph that their fixes are replayed on. It is stored with the
result, and answers later, in another process.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.engine.analysis import Analysis, CombinedSaving
from tb_perfadvisor.engine.combination import Combination, limits_of
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.whatif import Fix, OtherRanks, Simulation, other_ranks, simulation

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
