"""What a rule is: it declares what it needs, reads signals and yields findings.

A rule opens no file, prints nothing and knows no other rule. Its docstring says what it finds in a
sentence. The sections of its page are in the TOML file beside its module, or follow in the
docstring; the page generator appends id, limits and needs.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import ClassVar, Literal, cast, overload

from msgspec import Struct

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.machine.facts import Look
from tb_perfadvisor.rules.amounts import share_of_window
from tb_perfadvisor.rules.entries import HEADINGS, page
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals, why_missing

Category = Literal[
    "input",
    "launch",
    "placement",
    "precision",
    "compute",
    "memory",
    "communication",
    "xla",
    "steps",
]

SECTIONS = tuple(HEADINGS.values())
"""The headings of a page."""


class Limit(Struct, frozen=True):
    """A threshold of a rule, with its reason; configurable as `RULE.NAME`.

    Declared as a class attribute. On an instance the attribute is the value in force:
    `self.minimum_share` is a number.
    """

    value: float
    unit: str
    why: str

    @overload
    def __get__(self, rule: None, owner: type[Rule]) -> Limit: ...
    @overload
    def __get__(self, rule: Rule, owner: type[Rule]) -> float: ...
    def __get__(self, rule: Rule | None, owner: type[Rule]) -> Limit | float:
        """The limit itself on a class; on an instance its own attribute hides this method."""
        return self if rule is None else self.value


class Rule(ABC):
    """Base of all rules; see the module's docstring."""

    id: ClassVar[str]
    """A noun phrase of the failing state, in kebab case."""
    title: ClassVar[str]
    """An imperative."""
    category: ClassVar[Category]
    """The folder of the rule's module; rules of other packages say it."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """Signals without which the rule is not applicable."""
    look: ClassVar[Look | None] = None
    """What it reads of the tensors of some steps; where the recorder could not look for that, the
    rule is not applicable."""
    suffices: ClassVar[Need | None] = None
    """A signal that makes the rule applicable where some of `needs` are missing. Then `check` asks
    `meets_needs`."""
    reads_sums: ClassVar[bool] = False
    """Whether it also works from a recorder's own sums (`Trace.totals`), without single events."""
    needs_of_sums: ClassVar[tuple[Need, ...] | None] = None
    """What it needs of such sums; None if it is the same as `needs`."""
    needs_of_snapshots: ClassVar[tuple[Need, ...] | None] = None
    """What it needs to work from a memory snapshot instead; None if it cannot."""
    needs_on_cpu: ClassVar[tuple[Need, ...] | None] = None
    """What it needs of a program that ran on the CPU alone; None if it is the same as `needs`."""
    refines: ClassVar[str | None] = None
    """The id of the general rule whose findings this one explains."""
    is_preview: ClassVar[bool] = True
    """Until the rule has fired on a real or recorded profile."""
    minimum_share: ClassVar[Limit]
    """The share of the step that a finding must concern; for rules that ask `is_minor`."""

    def __init_subclass__(cls) -> None:
        """Take the category of one of our rules from its folder."""
        package, _, folder = cls.__module__.rpartition(".")[0].rpartition(".")
        if f"{package}.base" == __name__:
            cls.category = cast("Category", folder)

    def __init__(self, settings: Mapping[str, float] | None = None) -> None:
        """Take the limits' values from settings, `{name: value}`, else from the class.

        Raises:
            UsageError: When a setting names no limit of this rule.
        """
        values = {name: limit.value for name, limit in self.limits().items()}
        unknown = set(settings or ()) - set(values)
        if unknown:
            raise UsageError(
                f"rule {self.id} has no limit {', '.join(sorted(unknown))}.",
                hint=f"Its limits: {', '.join(sorted(values)) or 'none'}.",
            )
        vars(self).update(values, **(settings or {}))

    @classmethod
    def limits(cls) -> Mapping[str, Limit]:
        """The rule's limits by name."""
        return _limits_of(cls)

    @classmethod
    def sections(cls) -> dict[str, str]:
        """The sections of the page: heading to text."""
        if pages := page(cls.__module__, cls.id):
            return pages
        text = inspect.getdoc(cls) or ""
        parts = re.split(r"^([A-Z][^\n]*)\n-{3,}$", text, flags=re.MULTILINE)
        return {
            # Ruff's Google style wants a colon after the headings that it knows.
            heading.strip().rstrip(":"): body.strip()
            for heading, body in zip(parts[1::2], parts[2::2], strict=True)
        }

    def is_minor(self, total_ns: int, signals: Signals) -> bool:
        """Whether a total is too small a part of the used steps to report."""
        return total_ns <= 0 or share_of_window(total_ns, signals) < self.minimum_share

    def meets_needs(self, signals: Signals) -> bool:
        """Whether the profile meets all of `needs`."""
        return all(why_missing(signals, need) is None for need in self.needs)

    @abstractmethod
    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield findings; none is a pass."""


@cache
def _limits_of(rule: type[Rule]) -> Mapping[str, Limit]:
    limits = {
        name: value
        for owner in reversed(rule.__mro__)
        for name, value in vars(owner).items()
        if isinstance(value, Limit)
    }
    return MappingProxyType(limits)
