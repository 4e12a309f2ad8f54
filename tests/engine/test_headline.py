from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from msgspec import structs

from tb_perfadvisor.advice.catalog import Remedy
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.headline import headline
from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, host, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.testing.symbols import operator
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import single

# Two steps of 10 ms. In each, the device idles for 6 ms.
TRACE = """
    cell 1ms
    step   |..........|..........|
    main   |pppppo....|pppppo....|
    gpu 7  |......KKKK|......KKKK|
"""


class Any(Rule):
    id, title, category = "any", "Do", "launch"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


def headline_of(*findings: Finding) -> str:
    signals = Signals(run_of(draw(TRACE)))
    ranked, _ = rank([(Any(), finding) for finding in findings], ms(20))
    return headline(signals, ranked, 0 if ranked else None)


# 5 of 10 ms pass in Python before the launch.
PYTHON = "Python code takes 50.0 % of each step"


@pytest.mark.parametrize(
    ("low", "text"),
    [
        (0.0, "up to −3.00 ms of 10.0, probably −2.00"),
        (0.39, "up to −3.00 ms of 10.0, probably −2.00"),
        # A tenth of 4 ms. The units differ, so each amount has its own.
        (0.4, "probably −2.00 ms of 10.0 ms (200 µs to 3.00 ms)"),
        (2.0, "probably −2.00 ms of 10.0 (1.00 to 3.00)"),
    ],
)
def test_what_costs_then_what_it_saves_and_how_surely(low: float, text: str) -> None:
    saving = Saving(ms(low), ms(4), ms(6), single(0, ms(6)), "measured")
    assert headline_of(Finding("", saving)) == f"{PYTHON}. Do: {text}"
    # What it is about follows the change, unless it cannot be shown whole.
    assert headline_of(Finding("", saving, instance="net.py:5")) == (
        f"{PYTHON}. Do (net.py:5): {text}"
    )
    assert headline_of(Finding("", saving, instance="add → mul → …")) == f"{PYTHON}. Do: {text}"
    assert headline_of(Finding("", saving, instance="step (net.py:5)")) == (
        f"{PYTHON}. Do (step, net.py:5): {text}"
    )


@pytest.mark.parametrize(
    ("share", "where"),
    [(0.31, ", mostly in step (net.py:5)"), (0.29, ", and nothing in the profile explains it")],
)
def test_idle_time_names_the_function_that_looks_found_for_half_of_it(
    share: float, where: str
) -> None:
    # 60 % of the time is idle.
    lines = Lines(10.0, 1000, (Line("net.py", 5, share, "step"),))
    trace = draw("cell 1ms\ngpu 7 |KK......KK|", step_line=False)
    trace = structs.replace(trace, facts=Facts(lines=lines))
    text = headline_of_run(trace)
    assert text.startswith(f"The device idles for 60.0 % of the profile{where}")


def test_what_it_is_about_leads_if_that_is_the_cost() -> None:
    saving = Saving(ms(2), ms(4), ms(4), single(0, ms(6)), "measured")
    found = Finding("", saving, instance="the gap takes 3.00 ms of each step (30.0 %)")
    assert headline_of(found) == (
        "The gap takes 3.00 ms of each step (30.0 %). Do: probably −2.00 ms of 10.0 (1.00 to 2.00)"
    )


def test_without_a_price_it_says_at_most() -> None:
    bounds = Saving(0, ms(3), ms(6), single(0, ms(6)), "measured")
    assert headline_of(Finding("", bounds=bounds)) == f"{PYTHON}. Do: up to −3.00 ms of 10.0"


def test_what_a_change_costs_is_said() -> None:
    claims = single(0, ms(6))
    # 1 of 10 ms longer, or 3 ms shorter.
    saving = Saving(-ms(2), ms(4), ms(6), claims, "measured", may_cost_ns=ms(2))
    lossy = Remedy("Do", costs=(("accuracy", "Rounds."),))
    assert headline_of(Finding("", saving, remedies=(lossy,))) == (
        f"{PYTHON}. Do: up to −3.00 ms of 10.0, probably −2.00, at worst +1.00, at the cost of "
        "accuracy"
    )


def test_without_an_expected_saving_it_names_what_takes_the_time() -> None:
    assert headline_of() == PYTHON
    nothing = Saving(0, 0, ms(6), single(0, ms(6)), "measured")
    assert headline_of(Finding("", nothing)) == PYTHON


LEGEND = {"f": host("forward", EventKind.ANNOTATION)}


def headline_of_run(trace: Trace) -> str:
    return analyze_run(run_of(trace), Config()).headline


def queued(wait_ms: int) -> Builder:
    """Three steps of 20 ms. A fill is launched at once, and starts late."""
    builder = TraceBuilder()
    for number in range(3):
        begin = ms(20 * number)
        builder.step(number, begin, begin + ms(20))
        builder.launch(begin, begin + us(20), key=f"first {number}")
        builder.kernel("gemm", begin + us(40), begin + ms(2), launched_by=f"first {number}")
        builder.launch(begin + us(50), begin + us(80), key=f"fill {number}")
        builder.kernel(
            "fill", begin + ms(2 + wait_ms), begin + ms(20), launched_by=f"fill {number}"
        )
        builder.annotation("exchange", begin + ms(1), begin + ms(15))
    return builder


def test_queued_work_names_what_waits() -> None:
    # 8 of 20 ms.
    assert headline_of_run(queued(8).build()) == (
        "Launched work waits for 40.0 % of each step to start: fill on stream 7, under exchange. "
        "Find out why queued work does not start: up to −8.00 ms of 20.0"
    )


def test_just_below_and_just_above_a_tenth() -> None:
    # 1 and 2 of 20 ms are 5 and 10 %.
    assert "Launched work waits" not in headline_of_run(queued(1).build())
    assert "Launched work waits for 10.0 % of each step" in headline_of_run(queued(2).build())


def test_savings_come_before_queued_work() -> None:
    # Each step waits 10 ms for a batch; then, the fill waits 6 ms although it is launched.
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    builder = TraceBuilder()
    for number in range(3):
        begin = ms(40 * number)
        builder.step(number, begin, begin + ms(40))
        builder.host(EventKind.INPUT_WAIT, name, begin, begin + ms(10))
        builder.launch(begin + ms(10), begin + ms(10) + us(20), key=f"first {number}")
        builder.launch(begin + ms(11), begin + ms(11) + us(20), key=f"fill {number}")
        begin += ms(10) + us(40)
        builder.kernel("gemm", begin, begin + ms(4), launched_by=f"first {number}")
        end = ms(40 * number + 40)
        builder.kernel("fill", begin + ms(10), end, launched_by=f"fill {number}")
    text = headline_of_run(builder.build())
    # The fetch may overlap with the wait, so the saving is less than 10 ms.
    assert re.match(
        r"Waiting for input takes 25\.0 % of each step\. [^.]*: .*−[\d.]+ ms of 40\.0", text
    )


def test_the_largest_cause_is_named_by_its_annotation() -> None:
    text = """
        cell 1ms
        main  |.ccc......|
        main  |.fff......|
        gpu 7 |K...KKKKKK|
    """
    assert headline_of_run(draw(text, legend=LEGEND)) == (
        "Compiling takes 30.0 % of the profile, mostly under forward"
    )


@pytest.mark.parametrize(("idle", "is_named"), [(19, False), (20, True)])
def test_a_fifth_of_the_time_is_named(idle: int, is_named: bool) -> None:
    cells = "K" * 40 + "." * idle + "K" * (60 - idle)
    text = headline_of_run(draw(f"cell 100us\ngpu 7 |{cells}|", step_line=False))
    assert ("The device idles for 20.0 % of the profile" in text) == is_named


def test_idle_that_nothing_explains() -> None:
    assert headline_of_run(draw("cell 1ms\ngpu 7 |KK......KK|", step_line=False)) == (
        "The device idles for 60.0 % of the profile, and nothing in the profile explains it"
    )


def test_where_the_time_goes_comes_before_little_savings() -> None:
    # 0.4 of 20 ms; of the 10 ms of Python, 1 and 3 ms are claimed.
    saving = Saving(ms(0.4), ms(0.4), ms(0.4), single(0, ms(1)), "measured")
    text = "Do: probably −200 µs of 10.0 ms"
    assert (
        headline_of(Finding("", saving)) == f"{PYTHON}, and no finding saves much of that. {text}"
    )
    saving = Saving(ms(0.4), ms(0.4), ms(0.4), single(0, ms(3)), "measured")
    assert headline_of(Finding("", saving)) == f"{PYTHON}. {text}"


@pytest.mark.parametrize(("cell", "stands_out"), [("300us", True), ("150us", False)])
def test_work_far_from_its_limit_stands_out(cell: str, stands_out: bool) -> None:
    # 2 x 8192^3 FLOP take 1.3 ms on an H100, of ten cells: 43 or 87 %.
    drawing = f"""
        cell {cell}
        step   |..........|..........|
        main   |vSSSSSSSSS|vSSSSSSSSS|
        gpu 7  |HHHHHHHHHH|HHHHHHHHHH|
    """
    product = operator(
        "aten::mm", shapes="[[8192,8192],[8192,8192]]", dtypes="c10::BFloat16;c10::BFloat16"
    )
    trace = draw(drawing, legend={"v": product}, device="NVIDIA H100 80GB HBM3")
    text = headline(Signals(run_of(trace)), (), None)
    assert text.startswith("Nothing stands out: ") is not stands_out
    assert "in aten::mm, at" in text
