"""Results that were there already, of the step before or of the same step."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.signals import Need, Signals


class RepeatedResults(ExaminedOperators):
    """The program computes again what it has computed before, from the same inputs.

    What it finds
    -------------
    In a PyTorch program, operators of the forward pass that depend only on parameters, buffers and
    other tensors of its modules that do not change, and on constants: masks, tables of positions, a
    weight that is unpacked in each call. And what a step computes twice from the same tensors: a
    second forward pass for a metric. In a TensorFlow program, calls of compiled functions and
    models that get the same tensors as the call before, such as an encoder that runs for each
    token.

    Why it matters
    --------------
    The same inputs give the same result. Computed once and kept, it costs nothing.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each tensor is followed back to where it comes from.
    Inputs count as changing, even if they are equal. So do parameters that are trained: what
    depends on them is the same only between two updates, within a step. A checksum of the results
    makes sure. TensorFlow's tensors do not change; that the results of calls are the same is
    compared five times. Operators that draw random numbers, views, and what checkpointing computes
    again are left out, and so are programs that repeat all of their work, as benchmarks do.
    Expected is the operators' share of the time of all operators, with what the last
    backward pass does once more for a second forward pass. Low is 70 % of it, and high is a third
    more.

    When to ignore
    --------------
    When the result does not fit in memory.

    How to verify
    -------------
    The operators are gone from the step, and the results are the same.

    References:
    ----------
    Aho, Lam, Sethi and Ullman, "Compilers: Principles, Techniques, and Tools", on moving code out
    of loops and on common subexpressions.
    """

    id = "repeated-results"
    title = "Compute once what does not change"
    kinds = ("same in every step", "same twice")
    look = "repeated results"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.EXAMINED_STEPS)
    changes = ("computed-once",)
    basis = "measured"

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All of it: the result is there already."""
        return 0.7, 1.0, 1.3

    def describe(self, observed: Observed, cost: str) -> str:
        why = (
            "depends on nothing that changes from step to step"
            if observed.kind == "same in every step"
            else "gets the same inputs twice in a step"
        )
        return (
            f"{cost} goes into results that are there already. {observed.operator} in"
            f" {place_of_observed(observed)} {why}."
        )
