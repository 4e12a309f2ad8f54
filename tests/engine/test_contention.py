from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.engine.savings import widen
from tb_perfadvisor.rules.base import Category, Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.testing import draw, host, ms, run_of
from tb_perfadvisor.trace import EventKind, Framework

FETCH = host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", EventKind.INPUT_WAIT)
FEED = host("Iterator::ParallelMapV2", EventKind.INPUT_WORK)
REDUCE = host("gloo:all_reduce", EventKind.HOST_COLLECTIVE)
# Of each step 4 ms are a fetch and 6 are work: 8 and 12 in all.
STEPS = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoooooo|DDDDoooooo|
"""
# Two threads make batches during the first three milliseconds of the work.
FED = f"""{STEPS.rstrip()}
    feed1  |....WWW...|....WWW...|
    feed2  |....WWW...|....WWW...|
"""


def signals(text: str, framework: Framework = "pytorch") -> Signals:
    legend = {"D": FETCH, "W": FEED, "C": REDUCE}
    return Signals(run_of(draw(text, legend=legend, framework=framework)))


def widened(
    text: str,
    category: Category,
    low_ns: int = ms(4),
    expected_ns: int = ms(8),
    outside_claims_ns: int = 0,
    framework: Framework = "pytorch",
) -> tuple[int, int, int, int]:
    class Drawn(Rule):
        def check(self, signals: Signals) -> Iterable[Finding]:
            return ()

    Drawn.id, Drawn.title, Drawn.category = "drawn", "Do", category
    facts = signals(text, framework)
    claims = facts.attribution.intervals[Cause.INPUT]
    high_ns = expected_ns + outside_claims_ns
    saving = Saving(
        low_ns, expected_ns, high_ns, claims, "measured", outside_claims_ns=outside_claims_ns
    )
    ((_, finding),) = widen([(Drawn(), Finding("", saving))], facts)
    assert finding.saving is not None
    found = finding.saving
    return found.low_ns, found.expected_ns, found.high_ns, found.outside_claims_ns


def test_savings_differ_between_runs_and_so_does_the_rest_of_the_step() -> None:
    # 5 % of 8 ms; and 12 ms of work, 6 % faster or 5 % slower.
    assert widened(STEPS, "input") == (ms(3), ms(8), ms(9.12), ms(1.12))


def test_recording_may_have_made_the_rest_of_the_step_longer() -> None:
    # As above, but of 20 ms, the other 10.88 may take 10.88 / 1.4 = 7.77 ms alone: 9.12 / 16.89.
    _, _, high_ns, outside_ns = widened(STEPS, "input", framework="tensorflow")
    assert round(high_ns / ms(20), 4) == round(9.12 / (9.12 + 10.88 / 1.4), 4)
    assert outside_ns == high_ns - ms(8)


def test_a_gain_that_the_rule_already_knows_is_added() -> None:
    assert widened(STEPS, "launch", outside_claims_ns=ms(1)) == (
        ms(3),
        ms(8),
        ms(10.12),
        ms(2.12),
    )
    # At most the 12 ms.
    assert widened(STEPS, "launch", outside_claims_ns=ms(11)) == (ms(3), ms(8), ms(20), ms(12))
    # No change saves more than all of the time.
    assert widened(STEPS, "launch", outside_claims_ns=ms(30)) == (ms(3), ms(8), ms(20), ms(12))


def test_low_is_never_negative() -> None:
    assert widened(STEPS, "input", low_ns=ms(0.5)) == (0, ms(8), ms(9.12), ms(1.12))


def test_input_threads_take_processor_time_from_concurrent_work() -> None:
    # 3 ms of each step overlap with two threads, which leave a third of a core: 2 x 2 ms more.
    assert widened(FED, "input") == (ms(3), ms(8), ms(13.12), ms(5.12))
    # A fix of something else leaves the input threads running.
    assert widened(FED, "launch") == (ms(3), ms(8), ms(9.12), ms(1.12))


def test_host_collectives_take_processor_time_from_concurrent_work() -> None:
    # One thread concurrent with 3 ms of each step's work leaves half a core: 3 ms more.
    text = f"""{STEPS.rstrip()}
    gloo   |....CCC...|....CCC...|
    """
    assert widened(text, "communication") == (ms(3), ms(8), ms(12.12), ms(4.12))


def test_the_rest_of_the_step_gains_at_most_its_duration() -> None:
    # 19 threads next to all the work: 12 x 19 / 20 + 1.12 = 12.52 ms would be more than 12.
    lanes = "".join(f"    feed{n}  |....WWWWWW|....WWWWWW|\n" for n in range(19))
    assert widened(f"{STEPS.rstrip()}\n{lanes}", "input") == (ms(3), ms(8), ms(20), ms(12))


def test_a_saving_of_zero_is_not_widened() -> None:
    assert widened(STEPS, "input", low_ns=0, expected_ns=0) == (0, 0, 0, 0)


def test_captures_with_a_device_are_not_widened() -> None:
    # The device is idle for 4 ms of each step during the fetch; kernels take the rest.
    on_device = """
        cell 1ms
        step   |..........|..........|
        main   |DDDDo.....|DDDDo.....|
        gpu 7  |....KKKKKK|....KKKKKK|
    """
    assert widened(on_device, "input") == (ms(4), ms(8), ms(8), 0)


def test_the_high_end_is_limited_by_claims_and_rest() -> None:
    claims = signals(STEPS).attribution.intervals[Cause.INPUT]  # 8 ms
    wide = Saving(0, ms(8), ms(9), claims, "measured", outside_claims_ns=ms(1))
    assert wide.high_ns == ms(9)
    narrow = Saving(0, ms(8), ms(9), claims, "measured", outside_claims_ns=ms(0.5))
    assert narrow.high_ns == ms(8.5)


def test_at_best_the_rest_of_each_step_becomes_as_quick_as_in_quick_steps() -> None:
    # Without their fetches of 4 ms, the steps take 8, 3 and 3 ms: 5 ms more than in the quickest.
    uneven = """
        cell 1ms
        step   |............|.......|.......|
        main   |DDDDoooooooo|DDDDooo|DDDDooo|
    """
    assert widened(uneven, "input", expected_ns=ms(12)) == (ms(2.7), ms(12), ms(17.6), ms(5.6))
    # Steps may differ for other reasons, so at most as much as is expected.
    assert widened(uneven, "input", expected_ns=ms(4)) == (ms(3.1), ms(4), ms(8.2), ms(4.2))


def test_time_without_a_name_goes_with_what_the_steps_wait_for() -> None:
    # In all, 8 ms of fetches, 8 ms of work, and 4 ms in which Python does something: 2 ms go with
    # the fetches, of which half is expected. The rest is as above, of 8 ms of work.
    unnamed = """
        cell 1ms
        step   |..........|..........|
        main   |DDDDoo..oo|DDDDoo..oo|
    """
    expected = (ms(4 - 0.4 - 0.4), ms(9), ms(8 + 2 + 0.4 + 0.48), ms(2 + 0.4 + 0.48))
    assert widened(unnamed, "input") == expected
    # A finding about slow steps does not say why they are slow.
    assert widened(unnamed, "steps")[1] == ms(8)
