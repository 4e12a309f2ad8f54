from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Machine
from tb_perfadvisor.rules.launch.launching import CallsInPythonLoop, SingleStepDispatch
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, run_of, us
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace


def program(
    *, calls: int, call_us: int = 100, operation_us: int = 20, cores: int | None = 2, steps: int = 4
) -> Trace:
    """Steps that call a function in a loop; each call ends with the operation that it runs."""
    builder = TraceBuilder("jax")
    at = 0
    for number in range(steps):
        begin = at
        for _ in range(calls):
            builder.annotation("PjitFunction(env_step)", at, at + us(call_us))
            builder.operator("fusion.1", at + us(call_us - operation_us), at + us(call_us))
            at += us(call_us)
        builder.step(number, begin, at)
    return replace(builder.build(), facts=Facts(machine=Machine(cores=cores)))


def test_saves_what_one_call_for_all_saves() -> None:
    checked = check_rule(
        CallsInPythonLoop,
        slow=program(calls=10),
        fixed=program(calls=1, call_us=200, operation_us=200),
        saves="800us",  # 80 of the 100 us of each of 10 calls
    )
    (finding,) = checked.findings
    assert finding.instance == "env_step, 10 calls per step"
    saving = finding.saving
    assert saving is not None
    # Four steps. High: half of the 20 us of operations, ten times per step, besides.
    assert (saving.low_ns, saving.high_ns) == (us(4 * 400), us(4 * 900))


def test_on_one_core_calls_take_time_from_operations() -> None:
    (finding,) = find(CallsInPythonLoop, program(calls=10, operation_us=60, cores=1)) or ()
    saving = finding.saving
    assert saving is not None
    # Idle for 40 us of each call, in which operations run for 60 us.
    assert (saving.expected_ns, saving.high_ns) == (us(4 * (400 + 300)), us(4 * 1000))
    assert "For another 60.0 % they share the only core with operations." in finding.summary


def test_few_calls_are_parts_of_a_step_and_long_ones_are_worth_it() -> None:
    assert find(CallsInPythonLoop, program(calls=9)) == ()
    assert find(CallsInPythonLoop, program(calls=10, call_us=2100)) == ()
    assert find(CallsInPythonLoop, program(calls=10, call_us=1900))


def test_calls_that_wait_for_little_are_left_alone() -> None:
    assert find(CallsInPythonLoop, program(calls=10, operation_us=96)) == ()
    assert find(CallsInPythonLoop, program(calls=10, operation_us=94))


def test_the_general_rule_leaves_loops_to_this_one() -> None:
    assert find(SingleStepDispatch, program(calls=10)) == ()


def episodes(*, trains: bool) -> Trace:
    """Without marks: each update follows twelve calls of a costlier function."""
    builder, at = TraceBuilder("jax"), 0
    path = "jit(update)/transpose(jvp(loss))/dot_general" if trains else "jit(update)/dot_general"
    for _ in range(4):
        for name, count, hlo in (
            ("env_step", 12, {"module": "jit_env_step(1)", "path": "jit(env_step)/tanh"}),
            ("update", 1, {"module": "jit_update(2)", "path": path}),
        ):
            for _ in range(count):
                builder.annotation(f"PjitFunction({name})", at, at + us(900))
                work = Symbol(EventKind.OPERATOR, f"{name}.1", hlo=hlo)
                builder.add(work, at + us(100), at + us(900), thread="main")
                at += us(1000)
    return builder.build()


@pytest.mark.parametrize(
    ("trains", "steps"), [(True, "repeats of PjitFunction(update)"), (False, "env_step")]
)
def test_an_episode_that_is_learned_from_is_a_step(trains: bool, steps: str) -> None:
    assert steps in reference_worker(run_of(episodes(trains=trains))).steps.source
