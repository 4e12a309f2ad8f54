"""Compares what is stored of an analysis with the ranking of ticked findings."""

from __future__ import annotations

import itertools
from functools import partial

from tb_perfadvisor.engine.analysis import Analysis, CombinedSaving
from tb_perfadvisor.engine.change_model import (
    ChangeModel,
    change_model,
    decode_model,
    encode_model,
)
from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.engine.savings.simulated import saved_together
from tb_perfadvisor.signals.host.idle_owners import happening_once
from tb_perfadvisor.whatif import most_saved_ns

MOST_TICKED = 5


def ranked_together(analysis: Analysis, places: tuple[int, ...]) -> CombinedSaving | None:
    """What ranking only these findings says; None if it would show them in another way."""
    signals, chosen = analysis.signals, [analysis.findings[place] for place in places]
    findings, combined = rank(
        [(entry.rule, entry.finding) for entry in chosen],
        signals.attribution.window_ns,
        saved_together(signals),
        signals.steps,
        partial(most_saved_ns, signals),
        happening_once(signals),
    )
    shown = [(entry.finding, entry.refines) for entry in findings]
    return combined if shown == [(each.finding, each.refines) for each in chosen] else None


def stored_model(analysis: Analysis) -> ChangeModel:
    return decode_model(encode_model(change_model(analysis)))


def compare_combinations(analysis: Analysis) -> int:
    """Compare each choice of up to five findings with ranking them; return how many there are."""
    model, compared = stored_model(analysis), 0
    for count in range(1, MOST_TICKED + 1):
        for places in itertools.combinations(range(len(analysis.findings)), count):
            expected = ranked_together(analysis, places)
            if expected is not None:
                assert model.combined(places) == expected, places
                compared += 1
    return compared
