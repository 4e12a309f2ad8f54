"""What to change, with the code to write."""

from __future__ import annotations

from tb_perfadvisor.signals.workload.fit import Fit

Value = str | int | float | bool


class Remedy(Fit, frozen=True):
    """What to change, with the code to write. `Fit` says which programs it fits."""

    text: str
    snippet: str = ""
    language: str = "python"
    reference: str = ""
    fixes: tuple[str, ...] = ()
    """The ids of the fixes of `suggest` that make the change; empty if none does."""
    values: tuple[tuple[str, Value], ...] = ()
    """What the text and the code are filled in with, and what the fix gets, by name."""
    costs: tuple[tuple[str, str], ...] = ()
    """What the change costs: accuracy, information, memory or effort, each in a sentence."""
    may_cost: float = 0.0
    """By which part the host's time may grow where the change does not fit. Then new shapes in
    each step leave it without a price."""

    @property
    def is_lossy(self) -> bool:
        """Whether results get less exact, or less is known of the run."""
        return any(what in ("accuracy", "information") for what, _ in self.costs)
