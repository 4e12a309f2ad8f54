from __future__ import annotations

import pytest

from tb_perfadvisor.rules import savings
from tb_perfadvisor.rules.finding import Finding, Saving, Table
from tb_perfadvisor.rules.launch.waits import DeviceSynchronization
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.testing.symbols import Symbol, host
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.cuda_executor import Item, Launch, Operation, Played, Work, play

SLOW = """
    cell 10us
    step   |.........|.........|
    main   |oSSSo....|oSSSo....|
    gpu 7  |KKKK.KKKK|KKKK.KKKK|
"""
FIXED = """
    cell 10us
    step   |........|........|
    main   |o'......|o'......|
    gpu 7  |KKKK'KKK|KKKK'KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(DeviceSynchronization, slow=SLOW, fixed=FIXED, saves="10us")
    # Without the 30 µs of the call during which the device works.
    assert checked.expected_ns == 10_000


def test_a_wait_costs_at_most_its_duration() -> None:
    # After a wait of 10 µs Python computes for 50 µs: without it the host would be 10 µs ahead.
    trace = """
        cell 10us
        step   |...........|...........|
        main   |oSppppp o..|oSppppp o..|
        gpu 7  |KK......KKK|KK......KKK|
    """.replace(" o..", ".o..")
    (finding,) = find(DeviceSynchronization, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 20_000


def test_waiting_for_work_at_the_end_of_a_step_is_left_alone() -> None:
    trace = """
        cell 10us
        step   |........|........|
        main   |oSSSSSSS|oSSSSSSS|
        gpu 7  |KKKKKKKK|KKKKKKKK|
    """
    assert find(DeviceSynchronization, trace) == ()


def total(finding: Finding, key: str) -> int:
    """The sum of a column of the table of waits."""
    table = finding.evidence[0]
    assert isinstance(table, Table)
    place = [column.key for column in table.columns].index(key)
    return sum(cell for cell in (row[place] for row in table.rows) if isinstance(cell, int))


def items(kernel_ns: int, *, waits: bool = True) -> Played:
    """Five steps with one long kernel and 200 calls of `.item()` on results of another stream."""
    step = (Launch(7, kernel_ns), *(Launch(9, 3_000), Item(9)) * 200)
    return play([step], repeats=10, waits=waits, marked_repeats=5)


def test_waits_that_overlap_queued_work_cost_nothing() -> None:
    # A launch and a copy that is waited for take 18 µs, 200 of them 3.6 ms. The kernel takes
    # 8 ms, so the next one is always there before it ends.
    assert find(DeviceSynchronization, items(8_000_000).trace) == ()


def test_waits_that_starve_the_device_cost_what_a_program_without_them_saves() -> None:
    slow, fast = items(1_000_000), items(1_000_000, waits=False)
    (finding,) = find(DeviceSynchronization, slow.trace) or ()
    assert finding.saving is not None
    assert "200 waits per step" in finding.instance
    saved = slow.finished_ns[-1] - slow.finished_ns[4] - fast.finished_ns[-1] + fast.finished_ns[4]
    assert saved == 5 * 1_600_000  # each wait is 8 µs longer than the launch of its copy
    # Nothing comes after the last wait of the profile.
    assert finding.saving.high_ns == saved - 8_000
    # If the values are needed, a wait costs nothing while the queue is full, as the first quarter
    # of them, and gives no lead to later ones.
    (if_needed_ns, if_free_ns) = (total(finding, key) for key in ("if_needed_ns", "if_free_ns"))
    assert if_free_ns == saved - 8_000
    assert 0.7 * saved < if_needed_ns < 0.8 * saved
    assert finding.saving.expected_ns == (if_needed_ns + if_free_ns) // 2
    assert finding.saving.basis == "simulated"
    # The copied values may be sizes that the next launch needs.
    assert finding.saving.low_ns == 0


# A step of two results of the device. The host reads the first one, of a long kernel, and launches
# at once; it reads the second one, of a short kernel, and then computes for 3 ms.
LONG, SHORT, COMPUTING = Launch(7, 4_000_000), Launch(7, 100_000), Work(3_000_000)
READS_TWO = (LONG, Item(7), SHORT, Item(7), COMPUTING)


def steady_ns(*step: Operation, waits: bool = True) -> int:
    """How long a step takes in the long run."""
    finished = play([step], repeats=10, waits=waits, marked_repeats=5).finished_ns
    return (finished[-1] - finished[-4]) // 3


def finding_of(*step: Operation) -> tuple[Finding, Saving]:
    (finding,) = find(DeviceSynchronization, play([step], repeats=10, marked_repeats=5).trace) or ()
    assert finding.saving is not None
    return finding, finding.saving


def test_host_code_that_may_use_a_value_is_expected_to_stay_after_it() -> None:
    finding, saving = finding_of(*READS_TWO)
    low, expected, high = (ns / 5 for ns in (saving.low_ns, saving.expected_ns, saving.high_ns))
    now = steady_ns(*READS_TWO)
    # With the waits: a launch, 4,014 us until the copy has returned; the same again for the short
    # kernel, 114 us; computing, 3,000. Without them the device sets the pace, with 4,108 us.
    needs_neither = now - steady_ns(*READS_TWO, waits=False)
    # If it computes with the second value, only the first wait can go: 10 us until the kernel that
    # is queued by then begins.
    needs_second = now - steady_ns(LONG, Launch(7, 2_000), SHORT, Item(7), COMPUTING)
    assert (needs_neither, needs_second) == (3_020_000, 10_000)
    assert low == 0
    # Nothing follows the last of five waits, so it stays.
    assert high == pytest.approx(0.8 * needs_neither, rel=0.01)
    # The second wait takes 0.1 ms: without it, the host would be ahead by that much.
    assert needs_second < expected < 130_000
    assert "up to 2.42 ms of each step" in finding.summary


def test_host_code_after_other_calls_does_not_need_the_value() -> None:
    # The host reads both values and launches at once, and computes later.
    step = (LONG, Item(7), SHORT, Item(7), SHORT, COMPUTING)
    finding, saving = finding_of(*step)
    needs_neither = steady_ns(*step) - steady_ns(*step, waits=False)
    assert saving.high_ns / 5 == pytest.approx(needs_neither, rel=0.01)
    assert total(finding, "if_free_ns") / 5 == pytest.approx(needs_neither, rel=0.01)
    # A size that it reads may decide what it launches next. Then it is ahead by 0.1 ms at most:
    # the second wait, whose lead serves while it computes.
    assert total(finding, "if_needed_ns") / 5 < 130_000
    assert saving.expected_ns / 5 == pytest.approx((needs_neither + 120_000) / 2, rel=0.02)


@pytest.mark.parametrize("step", [READS_TWO, (LONG, Item(7), SHORT, COMPUTING, SHORT)])
def test_the_table_adds_up_to_the_expected_saving(step: tuple[Operation, ...]) -> None:
    finding, saving = finding_of(*step)
    assert total(finding, "expected_ns") == saving.expected_ns
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert len(table.rows) == 1  # no row without a wait


def test_just_below_and_just_above_the_limit() -> None:
    # One cell of nine: 11.1 %.
    assert find(DeviceSynchronization, SLOW, settings={"minimum_share": 0.112}) == ()
    assert len(find(DeviceSynchronization, SLOW, settings={"minimum_share": 0.11}) or ()) == 1


def test_waits_in_a_step_without_idle_time_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(signals: object) -> None:
        raise AssertionError

    monkeypatch.setattr(savings, "simulation", refuse)
    # Half a percent of each step is idle: a cell of two hundred.
    busy = f"{'K' * 199}."
    trace = f"""
        cell 10us
        step   |{"." * 200}|{"." * 200}|
        main   |{"oSSS".ljust(200, ".")}|{"oSSS".ljust(200, ".")}|
        gpu 7  |{busy}|{busy}|
    """
    assert find(DeviceSynchronization, trace) == ()
    with pytest.raises(AssertionError):
        find(DeviceSynchronization, SLOW)


def test_the_table_names_the_source_line_if_stacks_were_recorded() -> None:
    frames = {"p": host("train.py(12): step", EventKind.PYTHON)}
    stacked = SLOW.replace("    gpu 7", "    main   |.SSS.....|.SSS.....|\n    gpu 7").replace(
        "|oSSSo....|oSSSo....|", "|opppo....|opppo....|"
    )
    # In both steps, 10 of the 30 us are waited for after the device is done.
    call, numbers = "cudaStreamSynchronize", (2, 60_000, *[20_000] * 4)
    for trace, row in (
        (SLOW, (call, *numbers)),
        (stacked, (call, "train.py:12 step", *numbers)),
    ):
        (finding,) = find(DeviceSynchronization, trace, legend=frames) or ()
        table = finding.evidence[0]
        assert isinstance(table, Table)
        assert table.rows == (row,)


def fetching(host_ms: float, *, frame: str = "", call: str = "np.asarray(jax.Array)") -> Trace:
    """JAX on the CPU: four steps of 8 ms of work, a fetch until 0.5 ms after it, and host code.

    The fetch is a range of its own, and another one inside it.
    """
    builder, at = TraceBuilder("jax"), 0.0
    for number in range(4):
        builder.step(number, ms(at), ms(at + 8.6 + host_ms))
        builder.annotation("PjitFunction(step)", ms(at), ms(at + 0.1))
        work = Symbol(EventKind.OPERATOR, "dot.1", hlo={"module": "jit_step(7)"})
        builder.add(work, ms(at + 0.1), ms(at + 8.1), thread="pool")
        if frame:
            builder.host(EventKind.PYTHON, "$train.py:31 loop", ms(at + 0.1), ms(at + 8.6))
            builder.host(EventKind.PYTHON, frame, ms(at + 0.1), ms(at + 8.6))
        builder.synchronize(ms(at + 0.1), ms(at + 8.6), name=call)
        builder.synchronize(ms(at + 0.2), ms(at + 8.2), name="CommonPjRtBuffer::Await")
        at += 8.6 + host_ms
    return builder.build()


def test_a_fetch_in_each_step_of_jax_on_the_cpu() -> None:
    (finding,) = find(DeviceSynchronization, fetching(1.0)) or ()
    saving = finding.saving
    assert saving is not None
    # After the work, 0.5 ms in the call, then 1 ms of host code and 0.1 until the next run, which
    # share the cores: in three steps, and in the last one the call alone.
    assert saving.high_ns == ms(3 * 1.6)
    assert saving.expected_ns == ms(3 * (0.5 + 1.1 / 2))
    assert saving.low_ns == 0
    assert finding.instance == (
        "0.8 waits per step, by reading results (float(), jax.device_get(), np.asarray())"
    )
    assert finding.summary == (
        "The host waits for results, so it cannot run ahead: no operator runs for 1.20 ms of each"
        " step (12.5 %)."
    )


def test_long_host_code_after_a_fetch_on_the_cpu_has_its_own_finding() -> None:
    (finding,) = find(DeviceSynchronization, fetching(3.0)) or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == ms(3 * 0.5)


@pytest.mark.parametrize(
    ("frame", "call", "cause"),
    [
        ("$array.py:298 __float__", "np.asarray(jax.Array)", "float(), int() or .item()"),
        ("$array.py:294 __bool__", "np.asarray(jax.Array)", "arrays as conditions (if x:)"),
        ("$array.py:328 __format__", "np.asarray(jax.Array)", "printing arrays"),
        ("$api.py:2277 device_get", "np.asarray(jax.Array)", "jax.device_get()"),
        ("$api.py:2476 f", "$api.py:3154 block_until_ready", "block_until_ready()"),
    ],
)
def test_names_how_jax_waits_and_where(frame: str, call: str, cause: str) -> None:
    # Frames and calls as JAX 0.10 records them.
    (finding,) = find(DeviceSynchronization, fetching(1.0, frame=frame, call=call)) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    (site, *_) = table.rows
    facts = dict(zip((column.key for column in table.columns), site, strict=True))
    assert (facts["cause"], facts["source"]) == (cause, "train.py:31 loop")


def test_programs_of_pytorch_on_the_cpu_do_not_wait() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |ooooSSpp..|ooooSSpp..|
    """
    assert find(DeviceSynchronization, trace) is None


def dispatched(*, waits: bool) -> Trace:
    """JAX on a TPU: calls on the main thread, which another one launches; 3 ms of work each."""
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu")
    period_ms = 4 if waits else 3
    for number in range(6):
        at = period_ms * number
        builder.step(number, ms(at), ms(at + period_ms))
        builder.annotation("PjitFunction(step)", ms(at), ms(at + 0.4))
        builder.launch(
            ms(at + 0.5), ms(at + 0.6), name="DoEnqueueProgram", thread="tasks", key=f"run {number}"
        )
        begins = at + 0.7
        builder.derived(
            "modules",
            "jit_step(7)",
            ms(begins),
            ms(begins + 3),
            launched_by=f"run {number}",
        )
        builder.xla_op("fusion.1", ms(begins), ms(begins + 3), launched_by=f"run {number}")
        if waits:
            builder.synchronize(ms(at + 0.4), ms(at + 3.9), name="$api.py:3154 block_until_ready")
    return builder.build()


def test_synchronous_dispatch_on_a_tpu() -> None:
    # From the end of a run to the next one: 0.2 ms in the wait, then 0.1 + 0.7.
    (finding,) = find(DeviceSynchronization, dispatched(waits=True)) or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(5 * ms(1.0), rel=0.05)
    assert finding.instance.endswith(", by block_until_ready()")
    assert find(DeviceSynchronization, dispatched(waits=False)) == ()
