"""Adds the XLA operations that the cores of a TPU execute to the HLO table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.metadata import Metadata, Value
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import FusedOperations
from tb_perfadvisor.ingest.xspace.interpret.hlo.memory_accesses import device_memory_bytes
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import Operation, parse_operation
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import ITEMS_OF_OPERATION, Programs
from tb_perfadvisor.trace import Assembler, EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.tables import Int64

# Stats of event kinds that describe operations.
_STATS: Final = (
    *("hlo_category", "tf_op", "flops", "bytes_accessed", "source"),
    "memory_access_breakdown",
)
# Look into the operations that take this share of a core's time, the costliest first. The others
# are too many and too short to matter to any advice.
_INSPECTED_SHARE: Final = 0.99
_MAX_INSPECTED: Final = 500


# No operation on single elements computes as many FLOP for each byte.
_PRODUCT_INTENSITY: Final = 32
_LAST_OPERAND: Final = re.compile(r"%([\w.\-]+)\)(?:,|$)")


class _Facts(Struct, frozen=True):
    """What the stats of an operation say, and its program."""

    module: str
    text: str
    flop: float
    traffic_bytes: float
    source: str
    path: str
    inside: FusedOperations | None = None
    is_transposed: bool | None = None
    is_known_before_loop: bool | None = None


class TpuOperations:
    """Parses each operation and adds it to the trace once; cores share operations."""

    def __init__(self, assembler: Assembler, programs: Programs) -> None:
        """Create an empty collection.

        Args:
            assembler: Receives the operations.
            programs: The programs of the profile, which show what is inside fusions.
        """
        self._assembler = assembler
        self._programs = programs
        self._parsed: dict[tuple[Any, ...], tuple[Operation, _Facts]] = {}
        self._rows: dict[tuple[str, str], int] = {}

    def look_up(
        self, metadata: Metadata, rows: list[int], time_ns: Int64, programs: dict[int, str]
    ) -> tuple[list[Operation], Int64]:
        """The operations of event kinds.

        Args:
            metadata: The event kinds of a plane.
            rows: The kinds to look up.
            time_ns: The time that each of them takes in the plane.
            programs: Names of modules by program id.

        Returns:
            The operations, and their rows in the trace's HLO table.
        """
        module = {
            row: programs.get(int(number) % 2**64, str(int(number) % 2**64))
            for row, number in metadata.values("program_id").items()
            if isinstance(number, int)
        }
        stats = [metadata.values(stat) for stat in _STATS]
        pairs = []
        for row, is_costly in zip(rows, _is_costly(time_ns).tolist(), strict=True):
            # All cores of a program list the same operations.
            key = (
                _text_of(metadata, row),
                metadata.displays[row],
                module.get(row, ""),
                *(values.get(row) for values in stats),
            )
            known = self._parsed.get(key)
            if known is None:
                known = self._parsed[key] = self._parse(key, is_costly=is_costly)
            pairs.append(known)
        operations, facts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return _with_groups_of_starts(operations, facts), self._rows_of(operations, facts)

    def _parse(self, key: tuple[Any, ...], *, is_costly: bool) -> tuple[Operation, _Facts]:
        self._programs.budget.keep(ITEMS_OF_OPERATION)
        text, name, module, category, path, flop, traffic_bytes, source, accesses = key
        facts = _Facts(
            module=module,
            text=text if " = " in text else "",
            flop=_amount(flop),
            traffic_bytes=_amount(traffic_bytes),
            source=_text(source),
            path=_text(path),
        )
        operation = parse_operation(text, name=name, category=_text(category), path=_text(path))
        in_memory = device_memory_bytes(accesses) if isinstance(accesses, bytes) else None
        if in_memory is not None:
            facts = replace(facts, traffic_bytes=float(in_memory))
        elif operation.memory_bytes >= 0:
            # Stated bytes include those of arrays on the chip.
            facts = replace(facts, traffic_bytes=min(facts.traffic_bytes, operation.memory_bytes))
        if is_costly and operation.opcode == "fusion":
            facts = replace(facts, inside=self._programs.look_inside(module, operation.name))
        if is_costly and operation.opcode == "copy":
            is_transposed = self._programs.is_transposed(module, operation.name)
            facts = replace(facts, is_transposed=is_transposed)
        if is_costly:
            is_known = self._programs.is_known_before_loop(module, operation.name)
            facts = replace(facts, is_known_before_loop=is_known)
        return replace(
            operation, precision=_precision(operation, facts), family=_family(operation, facts)
        ), facts

    def _rows_of(self, operations: list[Operation], facts: list[_Facts]) -> Int64:
        keys = [
            (fact.module, fact.text or operation.name)
            for operation, fact in zip(operations, facts, strict=True)
        ]
        new = {
            key: (operation, fact)
            for key, operation, fact in zip(keys, operations, facts, strict=True)
            if key not in self._rows
        }
        if new:
            self._rows.update(zip(new, self._add(list(new.values())), strict=True))
        return np.array([self._rows[key] for key in keys], dtype=np.int64)

    def _add(self, new: list[tuple[Operation, _Facts]]) -> list[int]:
        operations, facts = zip(*new, strict=True)
        insides = [fact.inside for fact in facts]
        rows: list[int] = self._assembler.add_hlo(
            interned(self._assembler, (operation.name for operation in operations)),
            category=interned(self._assembler, (operation.category for operation in operations)),
            module=interned(self._assembler, (fact.module for fact in facts)),
            text=interned(self._assembler, (fact.text for fact in facts)),
            flop=[fact.flop for fact in facts],
            traffic_bytes=[fact.traffic_bytes for fact in facts],
            source_line=interned(self._assembler, (fact.source for fact in facts)),
            path=interned(self._assembler, (fact.path for fact in facts)),
            inside_opcodes=interned(self._assembler, (i.opcodes if i else "" for i in insides)),
            inside_paths=interned(self._assembler, (i.paths if i else "" for i in insides)),
            product=interned(self._assembler, (i.product if i else "" for i in insides)),
            inside_elements=[i.elements if i else -1 for i in insides],
            one_hot=[int(i.is_one_hot) if i and i.product else -1 for i in insides],
            transposed=[_answer(fact.is_transposed) for fact in facts],
            before_loop=[_answer(fact.is_known_before_loop) for fact in facts],
        ).tolist()
        return rows


def _with_groups_of_starts(operations: list[Operation], facts: list[_Facts]) -> list[Operation]:
    """Give each done half of a collective the group of its start, which alone has it."""
    starts = {
        (fact.module, operation.name): operation
        for operation, fact in zip(operations, facts, strict=True)
        if operation.collective and operation.group_size > 0
    }
    found = []
    for operation, fact in zip(operations, facts, strict=True):
        names = _LAST_OPERAND.search(fact.text) if operation.opcode.endswith("-done") else None
        start = starts.get((fact.module, names[1])) if names else None
        if operation.collective and operation.group_size < 0 and start is not None:
            found.append(
                replace(
                    operation,
                    group_size=start.group_size,
                    neighbors=start.neighbors,
                    group_names=start.group_names,
                    group_members=start.group_members,
                )
            )
        else:
            found.append(operation)
    return found


def interned(assembler: Assembler, texts: Iterable[str]) -> NDArray[np.int32]:
    """String indices; -1 for empty strings."""
    return np.array([assembler.intern(text) if text else -1 for text in texts], dtype=np.int32)


def _answer(is_true: bool | None) -> int:
    """1, 0, or -1 if unknown."""
    return -1 if is_true is None else int(is_true)


def _is_costly(time_ns: Int64) -> NDArray[np.bool_]:
    """Which operations are the costliest, by the time that each takes."""
    order = np.argsort(-time_ns, kind="stable")
    before_ns = np.cumsum(time_ns[order]) - time_ns[order]
    chosen = order[before_ns < _INSPECTED_SHARE * time_ns.sum()][:_MAX_INSPECTED]
    is_costly = np.zeros(len(time_ns), dtype=bool)
    is_costly[chosen] = True
    return is_costly


def _precision(operation: Operation, facts: _Facts) -> Precision:
    """The type that an operation computes in, by the product inside it.

    By default, a TPU rounds 32-bit factors to bfloat16 and multiplies once. `precision=high` and
    `highest` multiply three and six times, which reaches 32 bits (source: JAX documentation,
    "jax.lax.Precision").
    """
    inside = facts.inside
    product = inside.product if inside is not None else ""
    precision = parse_operation(product).precision if product else operation.precision
    is_product = bool(product) or operation.opcode in ("dot", "convolution")
    if precision != Precision.BITS_32 or not (is_product or "convolution" in operation.category):
        return precision
    if not is_product:
        return Precision.UNKNOWN
    is_default = "operand_precision={" not in (product or facts.text)
    return Precision.BITS_16 if is_default else precision


def _family(operation: Operation, facts: _Facts) -> KernelFamily:
    """What an operation computes, by its work where its text does not tell.

    A megacore fusion splits other fusions over the two cores of a chip.
    """
    if operation.category != "megacore fusion" or operation.kind != EventKind.KERNEL:
        return operation.family
    is_product = facts.flop > _PRODUCT_INTENSITY * facts.traffic_bytes
    return KernelFamily.MATMUL if is_product else operation.family


def _text_of(metadata: Metadata, row: int) -> str:
    name = metadata.names[row]
    if " = " in name:
        return name
    long_name = _text(metadata.values("long_name").get(row))
    if " = " in long_name:
        return long_name
    shape = _text(metadata.values("shape_with_layout").get(row))
    return f"%{name} = {shape}" if shape else name


def _text(value: Value | None) -> str:
    return value if isinstance(value, str) else ""


def _amount(value: Value | None) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 2**63 else np.nan
