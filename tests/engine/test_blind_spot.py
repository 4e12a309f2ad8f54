"""Finding nothing means something only if enough checks could run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.analysis import RuleOutcome, Status
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.headline import blind_spot
from tb_perfadvisor.note import Note
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Missing, Need, Signals
from tb_perfadvisor.testing import draw, run_of


class Any(Rule):
    id, title, category = "any", "Do", "launch"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


SUMS = Missing(Need.EVENTS, "the files contain only sums", "Record a trace.")
STEPS = Missing(Need.STEPS, "there are no steps", "Call prof.step().")
TPU = Missing(Need.INFEED, "there is no infeed", "")


def outcome(status: Status, *missing: Missing) -> RuleOutcome:
    return RuleOutcome(Any(), status, (), missing, None, 0.0)


def test_the_most_frequent_reason_is_named() -> None:
    found = blind_spot(
        [
            *[outcome("passed")] * 3,
            outcome("found"),
            *[outcome("not_applicable", SUMS, STEPS)] * 5,
            *[outcome("not_applicable", SUMS)] * 4,
        ]
    )
    assert found is not None
    assert (found.looked, found.checks) == (4, 13)
    assert found.reason == "the files contain only sums"


def test_a_third_is_enough() -> None:
    assert blind_spot([outcome("passed"), *[outcome("not_applicable", SUMS)] * 2]) is None
    assert blind_spot([outcome("passed"), *[outcome("not_applicable", SUMS)] * 3]) is not None


def test_what_cannot_concern_the_program_does_not_count() -> None:
    outcomes = [outcome("passed"), *[outcome("not_applicable", TPU)] * 30]
    assert blind_spot(outcomes) is None
    # Nor what lacks something that no recording provides, besides something that one does.
    assert blind_spot([*outcomes, *[outcome("not_applicable", TPU, SUMS)] * 9]) is None


HEALTHY = """
    cell 1ms
    step   |.....|.....|.....|
    main   |ooo..|ooo..|ooo..|
    gpu 7  |KKKKK|KKKKK|KKKKK|
"""


def test_the_headline_leaves_trust_to_the_badge() -> None:
    trace = draw(HEALTHY)
    note = Note("truncated-file", "warning", "The file breaks off.")
    whole = analyze_run(run_of(trace), Config()).headline
    cut = analyze_run(run_of(replace(trace, notes=(note,))), Config()).headline
    assert cut == whole


@pytest.mark.parametrize(
    ("path", "words"),
    [
        # Only sums of what a TPU did.
        (
            "xprof-demo/plugins/profile/Cloud-TPU",
            "could not run: the files contain only sums",
        ),
    ],
)
def test_recordings_that_show_little(corpus: Path, path: str, words: str) -> None:
    report = analyze(corpus / path)
    assert "Nothing stands out" not in report.headline
    assert words in report.headline
    assert report.blind_spot is not None
    assert report.blind_spot.looked < report.blind_spot.checks / 3


def test_an_ordinary_recording_may_say_that_nothing_stands_out(corpus: Path) -> None:
    report = analyze(corpus / "jax-lagged/async")
    assert report.blind_spot is None
    assert report.headline.startswith("Nothing stands out")
