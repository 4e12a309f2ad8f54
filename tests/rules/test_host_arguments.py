from __future__ import annotations

from collections.abc import Mapping

from tb_perfadvisor.rules.input.copies import HostArguments
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, host
from tb_perfadvisor.trace import EventKind

# Names that JAX 0.10 records on the CPU.
ON_CPU: Mapping[str, Symbol] = {
    "j": host("PjitFunction(step)"),
    "u": host("DevicePut"),
    "t": host("H2D Dispatch"),
    "p": host("$train.py:37 run", EventKind.PYTHON),
    "o": Symbol(EventKind.OPERATOR, "dot.3"),
}
SLOW = """
    cell 1ms
    step |..........|..........|
    main |jjj.......|jjj.......|
    main |.uu.......|.uu.......|
    pool |...ttttooo|...ttttooo|
"""
FIXED = """
    cell 1ms
    step |....|....|
    main |j...|j...|
    pool |.ooo|.ooo|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        HostArguments, slow=SLOW, fixed=FIXED, saves="6ms", legend=ON_CPU, framework="jax"
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Two milliseconds of `DevicePut` and four of its copy, in each of two steps. If arguments are
    # new batches, nothing is saved, but few batches take six tenths of a step: half is expected.
    found = finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns
    assert found == (0, 6_000_000, 12_000_000)


def test_what_takes_less_than_a_quarter_of_the_step_may_be_a_batch() -> None:
    short = """
        cell 1ms
        step |..........|..........|
        main |jj........|jj........|
        main |.u........|.u........|
        pool |..tooooooo|..tooooooo|
    """
    (finding,) = find(HostArguments, short, legend=ON_CPU, framework="jax") or ()
    assert finding.saving is not None
    # A quarter of two milliseconds in each of two steps.
    found = finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns
    assert found == (0, 1_000_000, 4_000_000)


def test_copies_of_an_argument_by_xla_are_no_other_work() -> None:
    legend = {**ON_CPU, "c": Symbol(EventKind.OPERATOR, "copy")}
    trace = SLOW.replace("|.uu.......|.uu.......|", "|.uuuuuu...|.uuuuuu...|")
    copied = trace.replace("|...ttttooo|...ttttooo|", "|...ccccooo|...ccccooo|")
    (finding,) = find(HostArguments, copied, legend=legend, framework="jax") or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * 6_000_000
    computing = copied.replace("cccc", "oooo")
    (finding,) = find(HostArguments, computing, legend=legend, framework="jax") or ()
    assert finding.saving is not None
    assert finding.saving.claimed_ns == 2 * 2_000_000
    # At best, the other four milliseconds of `DevicePut` slow what computes meanwhile by as much.
    assert finding.saving.high_ns == 2 * 6_000_000


def test_batches_that_are_put_before_the_call_are_no_arguments() -> None:
    ahead = """
        cell 1ms
        step |..........|..........|
        main |.uu...j...|.uu...j...|
        pool |...tttt.oo|...tttt.oo|
    """
    assert find(HostArguments, ahead, legend=ON_CPU, framework="jax") == ()


def test_python_is_not_blamed_for_the_dispatch_of_a_program() -> None:
    legend = {**ON_CPU, "u": host("CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice")}
    dispatch = """
        cell 1ms
        step |..........|..........|..........|
        main |pppppppppp|pppppppppp|pppppppppp|
        main |uuuuuuu...|uuuuuuu...|uuuuuuu...|
        pool |.......ooo|.......ooo|.......ooo|
    """
    assert find(PythonOverhead, dispatch, legend=legend, framework="jax") == ()
