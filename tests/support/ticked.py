"""Compares what is stored of an analysis with the ranking of ticked findings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from tb_perfadvisor.engine.analysis import Analysis, CombinedSaving
from tb_perfadvisor.engine.change_model import (
    ChangeModel,
    Combination,
    change_model,
    decode_model,
    encode_model,
)
from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.engine.savings import saved_together
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
    )
    shown = [(entry.finding, entry.refines) for entry in findings]
    return combined if shown == [(each.finding, each.refines) for each in chosen] else None


def stored_model(analysis: Analysis) -> ChangeModel:
    return decode_model(encode_model(change_model(analysis)))


def combined_alone(analysis: Analysis, places: Sequence[int]) -> CombinedSaving:
    """What these findings save together, as ranking adds them up, in the report's order."""
    signals = analysis.signals
    together = Combination(
        signals.attribution.window_ns,
        saved_together(signals),
        partial(most_saved_ns, signals),
    )
    for place in places:
        together.add(analysis.findings[place].finding)
    return together.combined


def compare_combinations(analysis: Analysis) -> int:
    """Compare each choice of up to five findings with the engine; return how many there are.

    Those that ranking alone shows as they are in the report must save what ranking says. Findings
    that explain another one add nothing to it. Where that one is not chosen, they add up like
    others, but to no more than with it in their place.
    """
    model, findings = stored_model(analysis), analysis.findings
    compared = 0
    for count in range(1, MOST_TICKED + 1):
        for places in itertools.combinations(range(len(findings)), count):
            actual = model.combined(places)
            ranked = ranked_together(analysis, places)
            assert ranked is None or actual == ranked, places
            chosen = {findings[place].rule.id for place in places}
            counted = [place for place in places if findings[place].refines not in chosen]
            alone = combined_alone(analysis, counted)
            general = {
                place if findings[place].refines is None else _general_of(analysis, place)
                for place in counted
            }
            with_general = combined_alone(analysis, sorted(general))
            assert actual.expected_ns == min(alone.expected_ns, with_general.expected_ns), places
            assert actual.high_ns == min(alone.high_ns, with_general.high_ns), places
            compared += 1
    return compared


def _general_of(analysis: Analysis, place: int) -> int:
    """The place of the finding that another one explains."""
    rule = analysis.findings[place].refines
    return next(at for at, entry in enumerate(analysis.findings) if entry.rule.id == rule)
