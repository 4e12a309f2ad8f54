"""What every registered rule keeps to, ours and those of installed packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tb_perfadvisor.engine.analyze import run_rule
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules.base import SECTIONS, Rule
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.rules.page import rule_page
from tb_perfadvisor.rules.registry import all_rules, builtin_rules
from tb_perfadvisor.signals import Need, reference_worker
from tb_perfadvisor.testing import TraceBuilder, draw, run_of
from tb_perfadvisor.toml_files import parse
from tb_perfadvisor.trace import Run
from tb_perfadvisor.trace.intervals import join, total_ns
from tests.support.night import examples

TESTS = Path(__file__).resolve().parents[1] / "rules"
RULES = all_rules()
UNITS = {"share", "ns", "bytes", "count", "ratio", "bytes/s", "flop/s", "bits"}
# Steps are ten cells; letters of both alphabets, `-` and `'` left out.
HOST_CELLS = "....DDdooOLSARCcpuBzZ"
DEVICE_CELLS = "....KKKHHkNNhqgbm"


def test_there_are_rules() -> None:
    assert len(RULES) >= 10
    assert len({rule.id for rule in RULES}) == len(RULES)


def faults_of(
    check: Callable[[type[Rule]], Iterable[tuple[bool, str]]], rules: tuple[type[Rule], ...] = RULES
) -> list[str]:
    """What a check of single rules does not find as it must be, with the rule."""
    return [f"{rule.id}: {claim}" for rule in rules for holds, claim in check(rule) if not holds]


def test_the_docstring_is_the_page() -> None:
    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        sections = rule.sections()
        yield list(sections) == list(SECTIONS), "all sections are there, in this order"
        yield all(sections.values()), "no section is empty"
        yield (rule.__doc__ or "").strip().splitlines()[0].endswith("."), "the summary is a line"
        page = rule_page(rule)
        for heading, text in sections.items():
            yield f"## {heading}\n\n{text}" in page, f"{heading!r} is on the page"

    assert faults_of(check) == []


def test_what_tells_the_gain_of_each_rule_for_tpus() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/numbers.md").read_text("utf-8")
    rows = page.partition("| what tells it |")[2].partition("\n\n")[0].splitlines()[2:]
    by_kind = [re.findall("`([a-z-]+)`", row) for row in rows]
    needs = {Need.PROGRAMS, Need.TILED_LAYOUTS, Need.XLA_OPERATIONS}
    of_tpus = [rule for rule in builtin_rules() if rule.category == "xla" or needs & {*rule.needs}]
    assert sorted(name for names in by_kind for name in names) == sorted(r.id for r in of_tpus)
    costly = [rule for rule in of_tpus if issubclass(rule, CostlyOperations)]
    assert {rule.id for rule in costly if rule.is_priced} < {*by_kind[0]}
    assert {rule.id for rule in costly if not rule.is_priced} < {*by_kind[-1]}
    is_of_shapes = [rule.best_ns is not CostlyOperations.best_ns for rule in costly]
    assert all(of for of, rule in zip(is_of_shapes, costly, strict=True) if rule.is_priced)


def test_nothing_is_left_to_do() -> None:
    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        yield "TODO" not in rule_page(rule), "each TODO of the template is filled in"

    assert faults_of(check) == []


def test_names_agree() -> None:
    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        yield bool(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)), "words with hyphens"
        # InputStall, not the plural and no abbreviation: the id in camel case.
        yield rule.__name__.lower() == rule.id.replace("-", ""), "the class is named like the id"

    assert faults_of(check) == []


def test_every_rule_has_cases() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in TESTS.glob("*.py"))
    checked = set(re.findall(r"check_rule\(\s*(\w+)\b", texts))
    tables = [parse(path.read_text(encoding="utf-8")) for path in TESTS.glob("*.toml")]
    in_tables = {rule_id for table in tables for rule_id in table}

    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        has_cases = rule.__name__ in checked or rule.id in in_tables
        yield has_cases, "a test in tests/rules calls check_rule, or a table there has cases"

    assert faults_of(check, builtin_rules()) == []


def test_the_title_is_an_imperative() -> None:
    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        yield bool(re.match(r"[A-Z][a-z]", rule.title)), "the title starts with a capital"
        yield not rule.title.endswith("."), "the title has no full stop"
        yield len(rule.title) <= 70, "the title has at most 70 characters"
        is_other = re.match(r"\w{3,}(ing|ies|es)\b", rule.title)
        yield not is_other, "the title is neither a gerund nor a third person"

    assert faults_of(check) == []


def test_limits_have_a_unit_and_a_reason() -> None:
    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        for name, limit in rule.limits().items():
            yield limit.unit in UNITS, f"{name} has a unit"
            yield bool(re.fullmatch(r"[A-Z0-9].{20,}\.", limit.why)), f"{name} says why"
            given = rule({name: limit.value * 2})
            yield given.__dict__[name] == limit.value * 2, f"{name} can be set"

    assert faults_of(check) == []


def test_a_setting_that_names_no_limit_is_refused() -> None:
    for rule in RULES:
        with pytest.raises(UsageError, match="has no limit no_such_limit"):
            rule({"no_such_limit": 1.0})


def test_needs_are_distinct() -> None:
    def check(rule: type[Rule]) -> Iterator[tuple[bool, str]]:
        yield all(isinstance(need, Need) for need in rule.needs), "needs are of `Need`"
        yield len(set(rule.needs)) == len(rule.needs), "needs are distinct"

    assert faults_of(check) == []


def test_a_refined_rule_exists_and_is_general() -> None:
    general = {rule.id for rule in RULES if rule.refines is None}  # findings nest one deep
    assert {rule.refines for rule in RULES} - general == {None}


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


@examples(25)
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


@examples(15)
@example(  # long gaps without a name, and no saving
    main="oooooooooo|........oo|oooooooooo",
    core="XXXXXXXXXX|........XX|XXXXXXXXXX",
    has_steps=False,
)
@given(main=lane("....DdoLSAcpu", 3), core=lane("...XXXYYNI", 3), has_steps=st.booleans())
def test_no_rule_fails_on_whatever_a_tpu_does(*, main: str, core: str, has_steps: bool) -> None:
    text = f"""
        cell 1ms
        step  |..........|..........|..........|
        main  |{main}|
        tpu 0 |{core}|
    """
    check_every_rule(run_of(draw(text, device="TPU v5 lite", step_line=has_steps)))
