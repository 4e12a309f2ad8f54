"""A rule with other limits and constants, to test just below and just above each of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import new_class
from typing import cast

from msgspec.structs import replace

from tb_perfadvisor.rules.base import Limit, Rule


def changed(rule: type[Rule], values: Mapping[str, float]) -> type[Rule]:
    """The rule with other values of limits, or of constants that users cannot set."""
    attributes: dict[str, Limit | float] = {}
    for name, value in values.items():
        now = getattr(rule, name)
        attributes[name] = replace(now, value=value) if isinstance(now, Limit) else value
    kind = new_class(rule.__name__, (rule,), exec_body=lambda names: names.update(attributes))
    return cast("type[Rule]", kind)
