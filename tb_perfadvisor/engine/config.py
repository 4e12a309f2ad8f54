"""Settings: which rules run, their limits, and facts that profiles do not record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Struct, field

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.hardware import named_device
from tb_perfadvisor.remark import MOST_CHARACTERS, Remark
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.registry import all_rules, find_rule
from tb_perfadvisor.signals import Options
from tb_perfadvisor.toml_files import parse
from tb_perfadvisor.training.training import RunOptions
from tb_perfadvisor.units import LARGEST_SETTING


class Config(Struct, frozen=True):
    """Settings of an analysis.

    A file has the same shape in TOML: `select = [...]`, `ignore = [...]`, `parameters = N`,
    `link_bandwidth_gb_per_s = X`, `device = "NAME"`, `tokens_per_step = N`,
    `price_per_device_hour = X`, `total_steps = N`, one table of limits per rule,
    `[limits.RULE]`, and one table per note on a finding, `[[notes]]`.
    """

    select: tuple[str, ...] = ()
    """Rules to run; empty means all."""
    ignore: tuple[str, ...] = ()
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    options: Options = field(default_factory=Options)
    run: RunOptions = field(default_factory=RunOptions)
    """Facts about the whole run, which no analysis of a profile depends on."""
    remarks: tuple[Remark, ...] = ()
    """What the user says about findings, on which no analysis depends either."""
    with_views: bool = False
    with_all_rows: bool = False
    """Whether the views list all kernels and operators, for tables, and not only the costliest."""
    with_timelines: bool = False
    """Whether the views include the events around the evidence, for a page without a server."""

    def check(self) -> tuple[Rule, ...]:
        """Refuse names that do not exist, and return the rules to run."""
        if self.options.device is not None:
            named_device(self.options.device)
        return self.rules()

    def rules(self) -> tuple[Rule, ...]:
        """The rules to run, with their limits set."""
        for rule_id in (*self.select, *self.ignore, *self.limits):
            find_rule(rule_id)
        chosen = (
            rule
            for rule in all_rules()
            if rule.id not in self.ignore and (not self.select or rule.id in self.select)
        )
        return tuple(rule(self.limits.get(rule.id)) for rule in chosen)


_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SETTING)]
_PositiveNumber = Annotated[float, msgspec.Meta(gt=0, le=LARGEST_SETTING)]
_Number = Annotated[float, msgspec.Meta(ge=-LARGEST_SETTING, le=LARGEST_SETTING)]


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[[notes]]`."""

    finding: str
    run: str = ""
    wont_fix: bool = False
    text: Annotated[str, msgspec.Meta(max_length=MOST_CHARACTERS)] = ""


class _Settings(msgspec.Struct, frozen=True):
    """The keys of a file, and the types of their values."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    parameters: _Count | None = None
    link_bandwidth_gb_per_s: _PositiveNumber | None = None
    device: str | None = None
    tokens_per_step: _Count | None = None
    price_per_device_hour: _PositiveNumber | None = None
    total_steps: _Count | None = None
    notes: tuple[_Note, ...] = ()
    limits: dict[str, dict[str, _Number]] = msgspec.field(default_factory=dict)


_KEYS = set(_Settings.__struct_fields__)


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a configuration file."""
    try:
        values = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except ValueError as error:
        raise UsageError(f"is not valid TOML: {error}.", where=str(path)) from error
    unknown = values.keys() - _KEYS
    if unknown:
        raise UsageError(
            f"has unknown keys: {', '.join(sorted(unknown))}.",
            where=str(path),
            hint=f"Known keys: {', '.join(sorted(_KEYS))}.",
        )
    limits = values.get("limits", {})
    if not isinstance(limits, dict) or not all(
        isinstance(table, dict) for table in limits.values()
    ):
        raise UsageError("needs one table [limits.RULE] per rule.", where=str(path))
    try:
        settings = msgspec.convert(values, _Settings)
    except msgspec.ValidationError as error:
        # In msgspec's messages `$` is the file: "Expected `str`, got `int` - at `$.select`".
        reason = str(error).replace("`$.", "`")
        raise UsageError(f"has a wrong value: {reason}.", where=str(path)) from error
    bandwidth = settings.link_bandwidth_gb_per_s
    return Config(
        select=settings.select,
        ignore=settings.ignore,
        limits=settings.limits,
        options=Options(
            parameters=settings.parameters,
            link_bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * 1e9,
            device=settings.device,
            tokens_per_step=settings.tokens_per_step,
        ),
        run=RunOptions(settings.price_per_device_hour, settings.total_steps),
        remarks=tuple(
            Remark(note.finding, note.wont_fix, note.text, note.run) for note in settings.notes
        ),
    )
