"""Reads the catalog: the TOML files of this folder. The README beside them explains the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.recording.hints import STACKS
from tb_perfadvisor.signals.recording.profiled_steps import SKIP_WARM_UP
from tb_perfadvisor.signals.workload.fit import Fit, Hint
from tb_perfadvisor.signals.workload.workload import GROUPS, OWNERS, Part
from tb_perfadvisor.toml_files import parse, tables

_FOLDER = Path(__file__).parent
_PLACEHOLDER = regex(r"\{\{(\w+)\}\}")

Framework = Literal["any", "pytorch", "tensorflow", "jax", "none"]
Cost = Literal["accuracy", "information", "memory", "effort"]
Place = Literal["step", "loop", "loader", "optimizer"]
Value = str | int | float | bool


class Remedy(Fit, frozen=True):
    """What to change, with the code to write. `Fit` says which programs it fits."""

    text: str
    snippet: str = ""
    language: str = "python"
    reference: str = ""
    fixes: tuple[str, ...] = ()
    """The ids of the fixes of `suggest` that make the change; empty if none does."""
    values: tuple[tuple[str, Value], ...] = ()
    """What the text and the code are filled in with, and what the fix gets, by name."""
    costs: tuple[tuple[str, str], ...] = ()
    """What the change costs: accuracy, information, memory or effort, each in a sentence."""
    may_cost: float = 0.0
    """By which part the host's time may grow where the change does not fit. Then new shapes in
    each step leave it without a price."""

    @property
    def is_lossy(self) -> bool:
        """Whether results get less exact, or less is known of the run."""
        return any(what in ("accuracy", "information") for what, _ in self.costs)


class _Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to make a change in some programs."""

    text: str = ""
    framework: Framework | None = None
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    code: str = ""
    """In Python."""
    command: str = ""
    """Or what to enter in a shell."""
    place: Place | None = None
    """Where the code goes, if a framework may own that."""
    reference: str = ""
    fixes: tuple[str, ...] = ()
    values: dict[str, Value] = {}
    may_cost: float | None = None


class _Entry(_Variant, frozen=True, forbid_unknown_fields=True):
    """A change, with what holds for all of its variants."""

    sets: str = ""
    costs: dict[Cost, str] = {}


class Change(msgspec.Struct, frozen=True):
    """An entry of the catalog."""

    id: str
    category: str
    """The name of the file that holds it."""
    remedies: tuple[Remedy, ...]
    """How to make the change, the special programs first. Placeholders are not filled in."""
    values: Mapping[str, Value]
    """What may be filled in, with the values that are shown where a rule gives none."""


def advise(*change_ids: str, **values: Value) -> tuple[Remedy, ...]:
    """The remedies of some changes. The engine shows those that fit the program.

    The best change comes first. `values` are what the rule has computed, for the placeholders of
    these entries of the catalog.

    Raises:
        LookupError: If there is no such entry, or none of them has such a value.
    """
    changes = [change(change_id) for change_id in change_ids]
    unknown = set(values).difference(*(each.values for each in changes))
    if unknown:
        raise LookupError(f"none of {', '.join(change_ids)} has a value {', '.join(unknown)}")
    return tuple(_filled(remedy, values) for each in changes for remedy in each.remedies)


@cache
def change(change_id: str) -> Change:
    """An entry of the catalog.

    Raises:
        LookupError: If there is no such entry.
    """
    if change_id in RECORDING:
        return Change(change_id, "recording", RECORDING[change_id], MappingProxyType({}))
    if change_id not in _texts():
        raise LookupError(f"no change {change_id!r} in the catalog of advice")
    category, text = _texts()[change_id]
    try:
        table = parse(text)[change_id]
        given = variants_of(table)
        own = {key: value for key, value in table.items() if not _holds_variants(value)}
        entry = msgspec.convert(own, _Entry)
        remedies = tuple(
            remedy
            for each in (msgspec.convert(given, tuple[_Variant, ...]) if given else (entry,))
            for remedy in _in_place(_remedy(change_id, entry, each), each.place)
        )
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise ValueError(f"{category}.toml, {change_id}: {error}") from error
    values = {name: value for remedy in remedies for name, value in remedy.values}
    return Change(change_id, category, remedies, MappingProxyType(values))


def variants_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The variants of an entry, each with what the name of its list says that it is for."""
    variants: list[dict[str, Any]] = []
    for whom, value in table.items():
        for each in value if _holds_variants(value) else ():
            if whom in get_args(Framework):
                variants.append(each | {"framework": whom})
            elif whom == "for":
                variants.append(each)
            else:
                variants.append(each | {"needs": [whom, *each.get("needs", ())]})
    return variants


def _holds_variants(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def change_ids() -> tuple[str, ...]:
    """The ids of all entries, in the order of the files."""
    return (*_texts(), *RECORDING)


@cache
def _texts() -> Mapping[str, tuple[str, str]]:
    """For each change, its category and the text of its entry."""
    texts: dict[str, tuple[str, str]] = {}
    for path in sorted(_FOLDER.glob("*.toml")):
        for change_id, text in tables(path).items():
            if change_id in texts:
                raise ValueError(f"{path.name}: a second entry for {change_id}")
            texts[change_id] = path.stem, f"[{change_id}]\n{text}"
    return MappingProxyType(texts)


def _remedy(change_id: str, entry: _Entry, variant: _Variant) -> Remedy:
    """A variant with what it takes from its entry."""
    framework = variant.framework or entry.framework or "any"
    return Remedy(
        change=change_id,
        sets=entry.sets,
        framework="" if framework == "any" else framework,
        needs=_parts(*entry.needs, *variant.needs),
        unless=_parts(*variant.unless, *entry.unless),
        text=" ".join((variant.text or entry.text).split()),
        snippet=(variant.code or variant.command).strip("\n"),
        language="bash" if variant.command else "python",
        reference=variant.reference or _settings(_parts(*variant.needs)) or entry.reference,
        fixes=variant.fixes or entry.fixes,
        values=tuple((variant.values or entry.values).items()),
        costs=tuple(entry.costs.items()),
        may_cost=(entry.may_cost if variant.may_cost is None else variant.may_cost) or 0.0,
    )


_SETTINGS = MappingProxyType(
    {
        Part.HF_TRAINER: "https://huggingface.co/docs/transformers/main_classes/trainer",
        Part.DEEPSPEED: "https://www.deepspeed.ai/docs/config-json/",
        Part.MEGATRON: "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        Part.TORCHTITAN: "https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/configs.py",
        Part.SGLANG: "https://docs.sglang.io/advanced_features/server_arguments.html",
    }
)
"""The pages about the settings of frameworks, for variants that name no other page."""


def _settings(needs: tuple[Part, ...]) -> str:
    return next((_SETTINGS[part] for part in needs if part in _SETTINGS), "")


def _in_place(remedy: Remedy, place: Place | None) -> Iterator[Remedy]:
    """A remedy; without its code where a framework owns the place that the code is for."""
    if place is None:
        yield remedy
        return
    yield msgspec.structs.replace(remedy, unless=(*remedy.unless, *OWNERS[place]))
    yield msgspec.structs.replace(remedy, snippet="", fixes=(), language="python")


def _parts(*names: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for name in names:
        parts += GROUPS.get(name) or (Part[name.upper().replace("-", "_")],)
    return tuple(dict.fromkeys(parts))


def _filled(remedy: Remedy, values: Mapping[str, Value]) -> Remedy:
    """A remedy with its placeholders filled in, by the rule's values or by its own."""
    own = {name: values.get(name, value) for name, value in remedy.values}

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: str(own[match[1]]), text)

    return msgspec.structs.replace(
        remedy, text=fill(remedy.text), snippet=fill(remedy.snippet), values=tuple(own.items())
    )


def _remedies(change: str, before: str, hints: tuple[Hint, ...]) -> tuple[Remedy, ...]:
    """PyTorch's hints as remedies, each after the same words."""
    return tuple(
        Remedy(
            text=f"{before}{hint.text}",
            framework="pytorch",
            needs=hint.needs,
            unless=hint.unless,
            change=change,
            reference="https://docs.pytorch.org/docs/stable/profiler.html",
        )
        for hint in hints
        if hint.framework in ("pytorch", "")
    )


RECORDING = MappingProxyType(
    {
        "record-stacks": _remedies(
            "record-stacks",
            "Compare the slowest step with a median one in the trace viewer. If the host's activity"
            " is missing there, record Python stacks. ",
            STACKS,
        ),
        "record-later": _remedies("record-later", "", SKIP_WARM_UP),
    }
)
"""The remedies of each change."""
