"""What every registered rule keeps to, ours and those of installed packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tb_perfadvisor.engine.run_rules import run_rule
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules.base import SECTIONS, Rule
from tb_perfadvisor.rules.page import rule_page
from tb_perfadvisor.rules.registry import all_rules, builtin_rules
from tb_perfadvisor.signals import Need, reference_worker
from tb_perfadvisor.testing import TraceBuilder, draw, run_of
from tb_perfadvisor.trace import Run
from tb_perfadvisor.trace.intervals import join, total_ns

TESTS = Path(__file__).resolve().parents[1] / "rules"
RULES = all_rules()
UNITS = {"share", "ns", "bytes", "count", "ratio", "bytes/s", "flop/s", "bits"}
# Steps are ten cells; letters of both alphabets, `-` and `'` left out.
HOST_CELLS = "....DDdooOLSARCcpuBzZ"
DEVICE_CELLS = "....KKKHHkNNhqgbm"


def by_id(rule: type[Rule]) -> str:
    return rule.id


every_rule = pytest.mark.parametrize("rule", RULES, ids=by_id)
every_rule_of_ours = pytest.mark.parametrize("rule", builtin_rules(), ids=by_id)


def test_there_are_rules() -> None:
    assert len(RULES) >= 10
    assert len({rule.id for rule in RULES}) == len(RULES)


@every_rule
def test_the_docstring_is_the_page(rule: type[Rule]) -> None:
    sections = rule.sections()
    assert [heading for heading in SECTIONS if not sections.get(heading)] == []
    assert list(sections) == list(SECTIONS), "the sections come in this order"
    summary = (rule.__doc__ or "").strip().splitlines()[0]
    assert summary.endswith(".")
    page = rule_page(rule)
    for heading in SECTIONS:
        assert f"## {heading}\n\n{sections[heading]}" in page


@every_rule
def test_names_agree(rule: type[Rule]) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
    # InputStall, not the plural and no abbreviation: the id in camel case.
    assert rule.__name__.lower() == rule.id.replace("-", "")
    assert rule.__module__.rsplit(".", 1)[-1] == rule.id.replace("-", "_")


@every_rule_of_ours
def test_one_rule_one_file_one_test(rule: type[Rule]) -> None:
    assert rule.__module__ == f"tb_perfadvisor.rules.{rule.category}.{rule.id.replace('-', '_')}"
    test = TESTS / f"test_{rule.id.replace('-', '_')}.py"
    assert test.is_file(), f"{test.name} is missing"
    text = test.read_text(encoding="utf-8")
    assert re.search(rf"check_rule\(\s*{rule.__name__}\b", text), "no check_rule in its test"


@every_rule
def test_the_title_is_an_imperative(rule: type[Rule]) -> None:
    assert re.match(r"[A-Z][a-z]", rule.title)
    assert not rule.title.endswith(".")
    assert len(rule.title) <= 70
    # Neither a gerund nor a third person.
    assert not re.match(r"\w{3,}(ing|ies|es)\b", rule.title)


@every_rule
def test_limits_have_a_unit_and_a_reason(rule: type[Rule]) -> None:
    for name, limit in rule.limits().items():
        assert limit.unit in UNITS, name
        assert re.fullmatch(r"[A-Z0-9].{20,}\.", limit.why), f"{name} does not say why"
        assert rule({name: limit.value * 2}).__dict__[name] == limit.value * 2


@every_rule
def test_a_setting_that_names_no_limit_is_refused(rule: type[Rule]) -> None:
    with pytest.raises(UsageError, match="has no limit no_such_limit"):
        rule({"no_such_limit": 1.0})


@every_rule
def test_needs_are_distinct(rule: type[Rule]) -> None:
    assert all(isinstance(need, Need) for need in rule.needs)
    assert len(set(rule.needs)) == len(rule.needs)


@every_rule
def test_a_refined_rule_exists_and_is_general(rule: type[Rule]) -> None:
    if rule.refines is not None:
        (general,) = [other for other in RULES if other.id == rule.refines]
        assert general.refines is None, "findings nest one deep"


def check_every_rule(run: Run) -> None:
    """No rule fails, and no saving is more than the time it claims inside the window."""
    signals = reference_worker(run)
    for rule in RULES:
        outcome = run_rule(rule(), signals)
        assert outcome.status != "failed", f"{rule.id}: {outcome.reason}"
        window = signals.attribution
        for finding in outcome.findings:
            assert finding.remedies
            if finding.saving is None:
                assert finding.severity is not None, rule.id
                continue
            claims = finding.saving.claims
            assert total_ns(join(claims)) == total_ns(claims), f"{rule.id}: claims overlap"
            if len(claims):
                assert claims[0, 0] >= window.window_start_ns, rule.id
                assert claims[-1, 1] <= window.window_end_ns, rule.id


def test_no_rule_fails_on_nothing() -> None:
    check_every_rule(run_of(TraceBuilder().build()))
    check_every_rule(run_of(TraceBuilder().annotation("x", 0, 0).build()))


def lane(letters: str, steps: int) -> st.SearchStrategy[str]:
    cells = st.text(st.sampled_from(letters), min_size=10, max_size=10)
    return st.lists(cells, min_size=steps, max_size=steps).map("|".join)


@settings(max_examples=25)
@given(
    main=lane(HOST_CELLS, 3),
    autograd=lane(HOST_CELLS, 3),
    compute=lane(DEVICE_CELLS, 3),
    wire=lane(DEVICE_CELLS, 3),
    has_steps=st.booleans(),
    ranks=st.integers(1, 2),
)
def test_no_rule_fails_on_whatever_is_drawn(
    *, main: str, autograd: str, compute: str, wire: str, has_steps: bool, ranks: int
) -> None:
    text = f"""
        cell 1ms
        step     |..........|..........|..........|
        main     |{main}|
        autograd |{autograd}|
        gpu 7    |{compute}|
        gpu 20   |{wire}|
    """
    traces = [
        draw(
            text,
            device="NVIDIA H100 80GB HBM3",
            step_line=has_steps,
            rank=rank,
            world_size=ranks,
        )
        for rank in range(ranks)
    ]
    check_every_rule(run_of(*traces))


@settings(max_examples=15)
@given(main=lane("....DdoLSAcpu", 3), core=lane("...XXXYYNI", 3), has_steps=st.booleans())
def test_no_rule_fails_on_whatever_a_tpu_does(*, main: str, core: str, has_steps: bool) -> None:
    text = f"""
        cell 1ms
        step  |..........|..........|..........|
        main  |{main}|
        tpu 0 |{core}|
    """
    check_every_rule(run_of(draw(text, device="TPU v5 lite", step_line=has_steps)))
