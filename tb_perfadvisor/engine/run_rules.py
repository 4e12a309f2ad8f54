"""Runs rules in isolation: one that raises is `failed`, and the others go on."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from tb_perfadvisor.execution.executors import processors
from tb_perfadvisor.rules.base import Finding, Rule
from tb_perfadvisor.signals import Missing, Need, Signals

_LOG = logging.getLogger(__name__)

# A thread begins with those that work out the steps' re-timing, the other one with those that work
# out each kernel's roofline: each would else wait for the other.
_FIRST_HERE: Final = ("communication", "input", "launch", "steps")
_FIRST_THERE: Final = ("compute", "precision", "xla")
# Of fewer events, what rules do is mostly Python, of which one thread runs at a time.
_WORTH_EVENTS: Final = 50_000
# How long Python in one thread keeps the other one from going on with what numpy has done for it.
_TURN_S: Final = 0.0005
THREAD: Final = "tb_perfadvisor rules"
"""What the other thread is called."""

Status = Literal["found", "passed", "not_applicable", "failed"]


class RuleOutcome(Struct, frozen=True):
    """What became of one rule on one worker."""

    rule: Rule
    status: Status
    findings: tuple[Finding, ...]
    missing: tuple[Missing, ...]
    reason: str | None
    elapsed_ms: float


Outcomes = tuple[RuleOutcome, ...]
BeginRules = Callable[[Sequence[Rule], Signals], AbstractContextManager[Callable[[], Outcomes]]]
"""A context in which rules may run already; what it gives runs what is left of them."""


def begin_here(
    rules: Sequence[Rule], signals: Signals
) -> AbstractContextManager[Callable[[], Outcomes]]:
    """All of them in this thread, when the outcomes are asked for."""
    return nullcontext(partial(run_rules, rules, signals))


def run_rules(rules: Sequence[Rule], signals: Signals) -> Outcomes:
    """Run each rule on one worker's signals; never raises for what a rule does."""
    return tuple(run_rule(rule, signals) for rule in rules)


@contextmanager
def begin_in_two_threads(
    rules: Sequence[Rule], signals: Signals
) -> Iterator[Callable[[], Outcomes]]:
    """Some of them in another thread, from now on; both share what they work out.

    Only where no other thread works. Rules that are not ours run in the calling thread alone.
    """
    if len(signals.trace.events) < _WORTH_EVENTS or processors() < 2:
        yield partial(run_rules, rules, signals)
        return
    waiting = deque(sorted((rule for rule in rules if _is_ours(rule)), key=_place))
    outcomes: dict[Rule, RuleOutcome] = {}

    def run(take: Callable[[], Rule]) -> None:
        with suppress(IndexError):  # none is left
            while True:
                rule = take()
                outcomes[rule] = run_rule(rule, signals)

    def finish() -> Outcomes:
        run(waiting.popleft)
        end_other()
        return tuple(
            outcomes[rule] if rule in outcomes else run_rule(rule, signals) for rule in rules
        )

    def end_other() -> None:
        if other.ident is not None:
            other.join()

    turn_s = sys.getswitchinterval()
    other = threading.Thread(target=run, args=(waiting.pop,), name=THREAD, daemon=True)
    try:
        sys.setswitchinterval(_TURN_S)
        with suppress(RuntimeError):  # no further thread: all run here
            other.start()
        yield finish
    finally:
        waiting.clear()
        end_other()
        sys.setswitchinterval(turn_s)


def _is_ours(rule: Rule) -> bool:
    return type(rule).__module__.startswith("tb_perfadvisor.")


def _place(rule: Rule) -> int:
    return (rule.category not in _FIRST_HERE) + (rule.category in _FIRST_THERE)


def run_rule(rule: Rule, signals: Signals) -> RuleOutcome:
    """Run one rule: found, passed, not applicable or failed."""
    begun = time.perf_counter()
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()
    reason = None
    status: Status
    try:
        needs = rule.needs if rule.reads_sums else (*rule.needs, Need.EVENTS)
        missing = tuple(m for m in map(signals.missing, needs) if m is not None)
        if missing:
            status = "not_applicable"
            reason = "; ".join(dict.fromkeys(one.reason for one in missing))
        else:
            findings = tuple(rule.check(signals))
            status = "found" if findings else "passed"
    except Exception as error:  # a rule, ours or a stranger's, must not take the report down
        _LOG.warning("rule %s failed on %s", rule.id, signals.trace.source.path, exc_info=True)
        status, findings = "failed", ()
        reason = f"{type(error).__name__}: {error}"
    elapsed_ms = (time.perf_counter() - begun) * 1e3
    return RuleOutcome(rule, status, findings, missing, reason, elapsed_ms)
