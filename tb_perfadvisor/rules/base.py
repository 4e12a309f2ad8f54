"""What a rule is: it says what it needs, reads signals and yields findings.

A rule opens no file, prints nothing and knows no other rule. Its class docstring is its page:
the sections named in `SECTIONS` are required, and what is metadata (id, limits, needs) is
appended by the machine, never written twice.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from msgspec import Struct

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules.evidence.evidence import Evidence
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.trace.intervals import Intervals, total_ns
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Fix

Severity = Literal["high", "medium", "low"]
Basis = Literal["measured", "simulated", "modeled", "heuristic"]
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

SECTIONS = (
    "What it finds",
    "Why it matters",
    "How it is measured",
    "When to ignore",
    "How to verify",
    "References",
)


class Limit(Struct, frozen=True):
    """A threshold with its reason; configurable as `RULE.NAME`."""

    value: float
    unit: str
    why: str


class Saving(Struct, frozen=True):
    """Wall-clock time that a change would save, as totals over the used window.

    `claims` are the intervals (in the reference worker's window) that the saving is taken
    from: advice that claims the same time is never added twice. Where `fix` says what the change
    does to the program, the engine re-times the steps with it, and what that saves takes the
    place of what is expected here.
    """

    low_ns: int
    expected_ns: int
    high_ns: int
    claims: Intervals
    basis: Basis
    fix: tuple[Fix, ...] = ()
    beside_ns: int = 0
    """How much of `high_ns` is not of the claims: the rest of the step may run faster, too. The
    engine adds what it may gain without what shared its cores."""
    unproven_ns: int = 0
    """How much of `expected_ns` re-timing does not show, as the recorded host is in the way, and
    recording slowed that host. The engine sets it."""

    def __post_init__(self) -> None:
        """Refuse an estimate that is no range, or that takes more time than it claims."""
        if not 0 <= self.low_ns <= self.expected_ns <= self.high_ns:
            raise ValueError(f"not a range: {self.low_ns}, {self.expected_ns}, {self.high_ns}")
        own_ns = self.high_ns - self.beside_ns
        if own_ns > total_ns(self.claims):
            raise ValueError(f"saves {own_ns} ns of {total_ns(self.claims)} ns claimed")


class Remedy(Struct, frozen=True):
    """What to change, with the code to write; `framework` empty serves all."""

    text: str
    snippet: str = ""
    language: str = "python"
    framework: str = ""
    reference: str = ""


class Finding(Struct, frozen=True):
    """One piece of advice. The rule's docstring supplies what is the same every time."""

    summary: str
    saving: Saving | None = None
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    ranks: tuple[int, ...] = ()
    severity: Severity | None = None
    """For findings without a saving; the others are rated by theirs."""


class Rule(ABC):
    """Base of all rules; see the module's docstring."""

    id: ClassVar[str]
    """A noun phrase of the failing state, in kebab case."""
    title: ClassVar[str]
    """An imperative."""
    category: ClassVar[Category]
    needs: ClassVar[tuple[Need, ...]] = ()
    """Signals without which the rule is not applicable."""
    reads_sums: ClassVar[bool] = False
    """Whether it also works from a recorder's own sums (`Trace.totals`), without single events."""
    refines: ClassVar[str | None] = None
    is_preview: ClassVar[bool] = True
    """Until the rule has fired on a real or recorded profile."""

    def __init__(self, settings: Mapping[str, float] | None = None) -> None:
        """Take the limits' values from settings, `{name: value}`, else from the class.

        Raises:
            UsageError: When a setting names no limit of this rule.
        """
        own = self.limits()
        unknown = set(settings or ()) - set(own)
        if unknown:
            raise UsageError(
                f"rule {self.id} has no limit {', '.join(sorted(unknown))}.",
                hint=f"Its limits: {', '.join(sorted(own)) or 'none'}.",
            )
        self._values = {name: limit.value for name, limit in own.items()} | dict(settings or {})

    @classmethod
    def limits(cls) -> dict[str, Limit]:
        """The rule's limits by name."""
        return {
            name: value
            for owner in reversed(cls.__mro__)
            for name, value in vars(owner).items()
            if isinstance(value, Limit)
        }

    @classmethod
    def sections(cls) -> dict[str, str]:
        """The docstring's sections: heading to text."""
        text = inspect.getdoc(cls) or ""
        parts = re.split(r"^([A-Z][^\n]*)\n-{3,}$", text, flags=re.MULTILINE)
        return {
            # Google's style, and so ruff, wants a colon behind the headings that it knows.
            heading.strip().rstrip(":"): body.strip()
            for heading, body in zip(parts[1::2], parts[2::2], strict=True)
        }

    def limit(self, name: str) -> float:
        """A limit's value in force."""
        return self._values[name]

    @abstractmethod
    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield findings; none is a pass."""


def share_of_window(total: int, signals: Signals) -> float:
    """A total's share of the used window, 0 when the window is empty."""
    window_ns = signals.attribution.window_ns
    return total / window_ns if window_ns else 0.0


def per_step(total_ns: int, signals: Signals) -> str:
    """A total as a person says it: `12.0 ms of each step (8.1 %)`, or of the profile."""
    share = format_share(share_of_window(total_ns, signals))
    if len(signals.steps) == 0:
        return f"{format_duration(total_ns)} of the profile ({share})"
    return f"{format_duration(total_ns / len(signals.steps))} of each step ({share})"


def count_per_step(count: int, noun: str, signals: Signals, *, plural: str = "") -> str:
    """A count as a person says it: `12 waits per step`, `3 waits in all`.

    Of a recorder's sums nobody knows how many there were: `waits summed up by step`.
    """
    plural = plural or f"{noun}s"
    if signals.trace.totals is not None:
        return f"{plural} summed up by step"
    if len(signals.steps) == 0:
        return f"{count:,} {noun if count == 1 else plural} in all"
    mean = count / len(signals.steps)
    text = f"{mean:,.0f}" if mean >= 10 or mean == round(mean) else f"{mean:.1f}"
    return f"{text} {noun if text == '1' else plural} per step"
