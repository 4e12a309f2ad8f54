"""Which programs a piece of advice, or a hint on how to record something, fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from tb_perfadvisor.signals.workload.workload import Part, Workload


class Fit(Struct, frozen=True, kw_only=True):
    """Base of advice that fits only some programs.

    Attributes:
        framework: pytorch, tensorflow or jax, or none for programs without any; empty if it fits
            all of them.
        needs: Parts that the program must be seen to have.
        unless: Parts that make the advice pointless or wrong.
        change: The id of the change that it advises, such as `loader-workers`. Of several pieces of
            advice for the same change, only the first one that fits is shown: list the special ones
            first. A program of an unknown framework is shown the first one for each framework.
        sets: What the change sets, if several changes set the same, such as `bucket-size`. They
            count as one change.
    """

    framework: str = ""
    needs: tuple[Part, ...] = ()
    unless: tuple[Part, ...] = ()
    change: str = ""
    sets: str = ""

    @property
    def subject(self) -> str:
        """What advice for the same has in common; empty if it stands alone."""
        return self.sets or self.change

    def fits(self, workload: Workload) -> bool:
        """Whether the advice fits a program. Advice for every framework fits unknown ones."""
        is_any = workload.base == "unknown" and self.framework != "none"
        is_its_framework = is_any or self.framework in ("", workload.base)
        return (
            is_its_framework
            and all(workload.has(part) for part in self.needs)
            and not any(workload.has(part) for part in self.unless)
        )


Advice = TypeVar("Advice", bound=Fit)


def fitting(advice: Iterable[Advice], workload: Workload) -> tuple[Advice, ...]:
    """The advice that fits a program, one piece for each change, in the given order."""
    chosen: list[Advice] = []
    for piece in advice:
        if piece.fits(workload) and not any(_is_instead(one, piece) for one in chosen):
            chosen.append(piece)
    return tuple(chosen)


def _is_instead(chosen: Fit, piece: Fit) -> bool:
    """Whether a piece of advice that was chosen takes the place of another one."""
    is_for_all = "" in (chosen.framework, piece.framework)
    return (
        bool(piece.subject)
        and chosen.subject == piece.subject
        and (is_for_all or chosen.framework == piece.framework)
    )


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
    frameworks = ("", workload.base)
    texts = (each.text for each in hints if each.framework in frameworks and each.fits(workload))
    return next(texts, "")
