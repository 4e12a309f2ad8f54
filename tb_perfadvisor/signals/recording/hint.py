"""A hint on how to record something, and the programs that it fits."""

from __future__ import annotations

from tb_perfadvisor.signals.workload.workload import Fit, Part, Workload


class Hint(Fit, frozen=True):
    """How to record something. `Fit` says in which programs."""

    text: str


def pytorch_hint(text: str, *needs: Part) -> Hint:
    """A hint for PyTorch programs with these parts."""
    return Hint(text=text, framework="pytorch", needs=needs)


def hint(text: str, framework: str = "") -> Hint:
    """A hint for all programs, or for those of a framework."""
    return Hint(text=text, framework=framework)


def first_fitting(hints: tuple[Hint, ...], workload: Workload) -> str:
    """The first hint that fits. A program of an unknown framework gets one for all of them."""
    return next(
        (
            hint.text
            for hint in hints
            if hint.framework in ("", workload.base) and hint.fits(workload)
        ),
        "",
    )
