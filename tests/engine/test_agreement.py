"""A finding and those that refine it propose the same code for the same change."""

from __future__ import annotations

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.engine.analysis import RankedFinding
from tb_perfadvisor.engine.headline import agreeing
from tb_perfadvisor.rules.communication.overlap import ExposedCommunication, LateGradientBucket
from tb_perfadvisor.rules.finding import Finding

LARGER = Remedy(text="Use larger buckets.", snippet="bucket_cap_mb = 100", sets="bucket-size")
SMALLER = Remedy(text="Use smaller buckets.", snippet="bucket_cap_mb = 10", sets="bucket-size")
OVERLAP = Remedy(text="Overlap them.", snippet="overlap = True", change="overlap")
ANYTHING = Remedy(text="Look at them.", snippet="look()")


def shown(general: tuple[Remedy, ...], refining: tuple[Remedy, ...]) -> list[tuple[Remedy, ...]]:
    rule = ExposedCommunication()
    findings = agreeing(
        [
            RankedFinding(rule, Finding("a", remedies=general), "low", 0, None),
            RankedFinding(LateGradientBucket(), Finding("b", remedies=refining), "low", 0, rule.id),
        ]
    )
    return [ranked.finding.remedies for ranked in findings]


def test_the_general_finding_drops_what_contradicts() -> None:
    general, refining = shown((OVERLAP, LARGER, ANYTHING), (SMALLER, OVERLAP))
    assert general == (OVERLAP, ANYTHING)
    assert refining == (SMALLER, OVERLAP)


def test_the_general_finding_keeps_a_remedy() -> None:
    assert shown((LARGER,), (SMALLER,)) == [(LARGER,), (SMALLER,)]
