"""A Python loop calls a short compiled program many times per step."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import step_loops
from tb_perfadvisor.rules.evidence.source_lines import lines_tables
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.looped_calls import looped_calls
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_share


class CallsInPythonLoop(Rule):
    """A Python loop calls a short jitted function many times in each step.

    What it finds
    -------------
    Jitted functions of a JAX program on the CPU that are called ten times or more in each step and
    take up to two milliseconds each: one call for each sample, for each moment of a simulation, or
    for each word.

    Why it matters
    --------------
    A call costs tens to hundreds of microseconds: Python checks the arguments, and the runtime
    makes buffers and hands the program to another thread. One program for the whole loop pays that
    once, and computes all samples at once.

    How it is measured
    ------------------
    The idle time in these calls and in the Python between them, in gaps of up to five milliseconds,
    minus what synchronizations and callbacks induce. Gaps may be longer by as much as other
    programs used of the cores. That is expected, and half of it is low, because operations are
    recorded at a cost. Where the process has one core, calls that prepare the next run take it from
    the run before: expected adds half of the time of such calls, and high adds all of it. High also
    adds half of the operations' time: in one program, an operation computes all samples at once, or
    finds in the caches what the one before left there.

    When to ignore
    --------------
    When the host must see each result before the next call, as in a game that runs outside of the
    program.

    How to verify
    -------------
    The profile shows one call per step in place of the many.

    References:
    ----------
    JAX documentation, `jax.vmap`, `jax.lax.scan`, and "Automatic vectorization".
    """

    id = "calls-in-python-loop"
    title = "Put the loop into the compiled program"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.CPU_PROGRAM, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(0.05, "share", "Moving a loop into a program takes some thought.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the calls of a loop keep the operations waiting."""
        calls = looped_calls(signals)
        idle_ns, sharing_ns = total_ns(calls.idle), total_ns(calls.sharing)
        if self.is_minor(idle_ns, signals):
            return
        duration_ns = signals.trace.events.duration_ns[calls.rows]
        count = count_per_step(len(calls.rows), "call", signals)
        share = format_share(sharing_ns / signals.attribution.window_ns)
        running_ns = total_ns(calls.loops) - idle_ns - sharing_ns
        beside = f" For another {share} they share the only core with operations." * (
            sharing_ns > idle_ns / 10
        )
        yield Finding(
            instance=f"{calls.functions[0]}, {count}",
            summary=(
                f"No operation runs for {per_step(idle_ns, signals)} while a Python loop calls"
                f" {' and '.join(calls.functions[:2])} ({count}).{beside}"
            ),
            saving=Saving(
                idle_ns // 2,
                idle_ns + sharing_ns // 2,
                idle_ns + sharing_ns + running_ns // 2,
                calls.loops,
                "measured",
            ),
            evidence=(
                events_by_name(
                    "Calls in loops",
                    "Function",
                    signals.trace,
                    calls.rows,
                    ((Column("host_ns", "Time on the host", "ns"), duration_ns),),
                ),
                *step_loops(signals),
                *lines_tables(signals.trace.facts.lines),
            ),
            remedies=advise("vmapped-calls", "loop-in-program"),
        )
