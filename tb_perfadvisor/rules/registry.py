"""Every rule there is: ours, found by walking this package, and strangers', by entry point.

A package adds rules with the entry point group `perfadvisor_rules`: each entry names a `Rule`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABCMeta
from functools import cache
from inspect import isabstract
from types import MappingProxyType
from typing import TypeGuard

import tb_perfadvisor.rules
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules import added_rules
from tb_perfadvisor.rules.base import Rule

RENAMED = MappingProxyType(
    {
        "backward-synchronisation": "backward-synchronization",
        "checkpoint-on-cpu": "recompute",
        "costly-product-order": "excess-work",
        "depthwise-convolution": "grouped-convolution",
        "device-synchronisation": "device-synchronization",
        "double-precision-on-cpu": "double-precision",
        "early-reduction": "exposed-communication",
        "input-imbalance": "straggler",
        "repeated-products": "excess-work",
        "unfused-elementwise": "unfused-operators",
        "unused-results": "excess-work",
    }
)
"""The present id of a rule by its former one, for settings, scripts and notes. Entries stay."""


@cache
def builtin_rules() -> tuple[type[Rule], ...]:
    """Our rules, in order of their id."""
    package = tb_perfadvisor.rules
    found: dict[str, type[Rule]] = {}
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        loaded = importlib.import_module(module.name)
        for value in (*vars(loaded).values(), *getattr(loaded, "RULES", ())):
            # An evaluator of tables has no id.
            is_whole = _is_rule(value) and not isabstract(value) and hasattr(value, "id")
            if is_whole and value.__module__ == loaded.__name__:
                found[value.id] = value
    return tuple(found[rule_id] for rule_id in sorted(found))


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Our rules and those of installed packages, in order of their id.

    Raises:
        UsageError: When two rules share an id, or an entry point is no rule.
    """
    found = {rule.id: rule for rule in builtin_rules()}
    for entry in added_rules():
        try:
            rule = entry.load()
        except Exception as error:  # whatever a stranger's package does when imported
            raise UsageError(
                f"the rule {entry.name!r} ({entry.value}) cannot be loaded: {error}.",
                hint="Mend or uninstall the package that brings it.",
            ) from error
        if not _is_rule(rule):
            raise UsageError(f"entry point {entry.name!r} ({entry.value}) is not a Rule.")
        if found.setdefault(rule.id, rule) is not rule:
            raise UsageError(
                f"two rules are called {rule.id!r}.",
                hint=f"Uninstall or rename the one in {rule.__module__}.",
            )
    return tuple(found[rule_id] for rule_id in sorted(found))


def _is_rule(value: object) -> TypeGuard[type[Rule]]:
    # `isinstance(value, type)` is no guard for `issubclass`: on Python 3.10 it holds for
    # `tuple[int, ...]`, which is no class.
    return isinstance(value, ABCMeta) and issubclass(value, Rule)


def find_rule(rule_id: str) -> type[Rule]:
    """The rule of an id.

    Raises:
        UsageError: When there is none, or it was renamed.
    """
    for rule in all_rules():
        if rule.id == rule_id:
            return rule
    if rule_id in RENAMED:
        raise UsageError(f"the rule {rule_id!r} is now called {RENAMED[rule_id]!r}.")
    from difflib import get_close_matches

    similar = get_close_matches(rule_id, [rule.id for rule in all_rules()], n=1)
    raise UsageError(
        f"there is no rule {rule_id!r}.",
        hint=(f"Did you mean {similar[0]!r}? " if similar else "")
        + "`perfadvisor rules` lists all of them.",
    )
