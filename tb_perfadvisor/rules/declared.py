"""Rules that are data: entries of the TOML file beside the module of their evaluator.

An evaluator is a `Rule` that knows how to check, but not for what. The table `[ID]` says the rest:

    title      what to do, as an imperative
    says       the failing state in a sentence
    stable     true once the rule has fired on a profile of a real program
    limits     such as `limits.minimum_share = { value = 0.02, unit = "share", why = "…" }`

All other keys are class attributes of the evaluator, which annotates and explains them.
"""

from __future__ import annotations

from types import new_class
from typing import Any, cast, get_args, get_type_hints

import msgspec

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.entries import entry, tables


class _Entry(msgspec.Struct, frozen=True):
    title: str
    says: str
    stable: bool = False
    limits: dict[str, Limit] = {}


def declared(evaluator: type[Rule], module: str) -> tuple[type[Rule], ...]:
    """The rules of the file beside a module.

    Raises:
        ValueError: If an entry lacks something, or says what the evaluator does not know.
    """
    ids = [name for name in tables(module) if "." not in name]
    types = get_type_hints(evaluator)
    return tuple(_rule(evaluator, types, module, rule_id) for rule_id in ids)


def _rule(evaluator: type[Rule], types: dict[str, Any], module: str, rule_id: str) -> type[Rule]:
    values = entry(module, rule_id)
    own = {name: values.pop(name) for name in _Entry.__struct_fields__ if name in values}
    try:
        said = msgspec.convert(own, _Entry)
        attributes: dict[str, Any] = {
            name: msgspec.convert(value, get_args(types[name])[0]) for name, value in values.items()
        }
    except (msgspec.ValidationError, KeyError) as error:
        raise ValueError(f"[{rule_id}] of {module}: {error}") from error
    attributes |= {"__doc__": said.says, "__module__": module, "id": rule_id, "title": said.title}
    attributes |= {"is_preview": not said.stable, **said.limits}
    name = "".join(part.capitalize() for part in rule_id.split("-"))
    return cast(
        "type[Rule]", new_class(name, (evaluator,), exec_body=lambda n: n.update(attributes))
    )
