"""What a user can set: which rules run, their limits, and what profiles don't say."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.registry import all_rules, find_rule
from tb_perfadvisor.signals import Options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of an analysis.

    A file has the same shape in TOML: `select = [...]`, `ignore = [...]`, `parameters = N`,
    `link_bandwidth_gb_per_s = X` and one table of limits per rule, `[limits.RULE]`.
    """

    select: tuple[str, ...] = ()
    """Rules to run; empty means all."""
    ignore: tuple[str, ...] = ()
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    options: Options = field(default_factory=Options)
    with_views: bool = False

    def rules(self) -> tuple[Rule, ...]:
        """The rules to run, with their limits set.

        Raises:
            UsageError: When a rule or a limit does not exist.
        """
        for rule_id in (*self.select, *self.ignore, *self.limits):
            find_rule(rule_id)
        chosen = (
            rule
            for rule in all_rules()
            if rule.id not in self.ignore and (not self.select or rule.id in self.select)
        )
        return tuple(rule(self.limits.get(rule.id)) for rule in chosen)


_KEYS = {"select", "ignore", "parameters", "link_bandwidth_gb_per_s", "limits"}


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a configuration file.

    Raises:
        UsageError: When it cannot be read or has a key that means nothing.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"is not valid TOML: {error}.", where=str(path)) from error
    unknown = values.keys() - _KEYS
    if unknown:
        raise UsageError(
            f"has no meaning for {', '.join(sorted(unknown))}.",
            where=str(path),
            hint=f"Known keys: {', '.join(sorted(_KEYS))}.",
        )
    bandwidth = values.get("link_bandwidth_gb_per_s")
    limits = values.get("limits", {})
    if not isinstance(limits, dict) or not all(isinstance(one, dict) for one in limits.values()):
        raise UsageError("needs one table [limits.RULE] per rule.", where=str(path))
    return Config(
        select=tuple(values.get("select", ())),
        ignore=tuple(values.get("ignore", ())),
        limits=limits,
        options=Options(
            parameters=values.get("parameters"),
            link_bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * 1e9,
        ),
    )
