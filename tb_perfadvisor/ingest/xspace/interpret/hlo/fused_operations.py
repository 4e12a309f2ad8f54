"""What fused operations do: accesses, lookups, transpositions, loops.

What an XLA fusion contains: the operations inside, where they come from, and its product.

The text of a fusion only names it. The operations inside are in the program that the profile
embeds.

What the body of an XLA loop computes although it is known before the loop.

A loop passes a tuple from trip to trip. Elements that the body returns as they are never change,
and a counter grows by a constant. What depends on nothing else could be computed for all trips at
once, before the first one.

Bytes that a TPU operation moves to and from the device's memory, as XProf's own stat has them.

`bytes_accessed` counts all memories. The stat `memory_access_breakdown` is a message with one entry
for each memory: reads and writes, the memory, and the bytes. An array of which a fusion reads only
a slice counts with that slice.

Which copies of an XLA program are there because the program transposes its arrays.

XLA transposes an array by renaming its dimensions, a bitcast that costs nothing. A program takes
and returns arrays in a fixed layout, though. If it transposes an argument or a result, a copy has
to move the elements. Without the transposition, the array has that layout already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import decoded, product_line
from tb_perfadvisor.trace.columns import TableLookup

# Operations that move nothing and compute nothing.
_PLUMBING: Final = frozenset(
    {b"parameter", b"constant", b"tuple", b"get-tuple-element", b"bitcast"}
)
_PRODUCTS: Final = (b"dot", b"convolution")
# A fusion contains a few others, and comes from a few lines of the program.
_MAX_COMPUTATIONS: Final = 50
_MAX_PATHS: Final = 40


class FusedOperations(Struct, frozen=True):
    """The operations inside a fusion."""

    opcodes: str
    """Distinct opcodes in alphabetical order, separated by spaces."""
    paths: str
    """Distinct framework names, such as `jit(step)/dense/dot_general`, separated by newlines."""
    product: str
    """HLO text of the largest matrix product or convolution; empty if there is none."""
    elements: int
    """Elements of the largest array that is computed inside."""


def fused_operations(fusion: Any, computations: Mapping[int, Any]) -> FusedOperations:
    """Look inside a fusion.

    `fusion` is an instruction of an `HloProto`. `computations` has all of the program, by id.
    """
    opcodes: set[bytes] = set()
    paths: dict[bytes, None] = {}
    product, operands = None, list[Any]()
    product_elements = elements = 0
    for computation in _inside(fusion, computations):
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in _PLUMBING:
                continue
            opcodes.add(opcode)
            paths[instruction.metadata.op_name] = None
            size = prod(instruction.shape.dimensions)
            elements = max(elements, size)
            if opcode in _PRODUCTS and size > product_elements:
                by_id = {int(other.id): other for other in computation.instructions}
                operands = [by_id.get(int(id_)) for id_ in instruction.operand_ids]
                product, product_elements = instruction, size
    named = [decoded(path) for path in islice(filter(None, paths), _MAX_PATHS)]
    return FusedOperations(
        opcodes=" ".join(sorted(map(decoded, opcodes))),
        paths="\n".join(named),
        product=product_line(product, operands) if product is not None else "",
        elements=elements,
    )


def _inside(fusion: Any, computations: Mapping[int, Any]) -> Iterator[Any]:
    """The computations of a fusion, those of fusions inside it included."""
    pending, seen = [int(id_) for id_ in fusion.called_computation_ids], set[int]()
    while pending and len(seen) < _MAX_COMPUTATIONS:
        number = pending.pop()
        computation = computations.get(number)
        if computation is None or number in seen:
            continue
        seen.add(number)
        yield computation
        for instruction in computation.instructions:
            if instruction.opcode == b"fusion":
                pending += [int(id_) for id_ in instruction.called_computation_ids]


# These rename an array, or move it to another memory.
_SAME: Final = (b"bitcast", b"copy", b"copy-start", b"copy-done")
_MAX_LOOP_CHAIN: Final = 16


def known_before_loop(body: Any) -> frozenset[bytes]:
    """Names of the instructions that depend on constants of a loop and its counter only.

    `body` is the computation that the loop repeats. Operands precede what uses them.
    """
    by_id = {int(member.id): member for member in body.instructions}
    root = by_id.get(int(body.root_id))
    if root is None or root.opcode != b"tuple":
        return frozenset()
    known: dict[int, bool] = {}
    for id_, member in by_id.items():
        if member.opcode == b"parameter":
            known[id_] = False
        elif member.opcode == b"get-tuple-element" and _is_element(member, by_id):
            known[id_] = _is_foreseeable(int(member.tuple_index), root, by_id)
        else:
            known[id_] = all(known.get(int(operand), False) for operand in member.operand_ids)
    return frozenset(by_id[id_].name for id_, is_known in known.items() if is_known)


def _is_element(member: Any, by_id: Mapping[int, Any]) -> bool:
    """Whether it is an element of the tuple that the loop passes, not of another result."""
    source = by_id.get(int(member.operand_ids[0])) if member.operand_ids else None
    return source is not None and source.opcode == b"parameter"


def _is_foreseeable(index: int, root: Any, by_id: Mapping[int, Any]) -> bool:
    """Whether an element stays as it is, or grows by a constant."""
    if index >= len(root.operand_ids):
        return False
    value = _loop_origin(int(root.operand_ids[index]), by_id)
    if value is not None and value.opcode == b"add":
        terms = [_loop_origin(int(id_), by_id) for id_ in value.operand_ids]
        others = [term for term in terms if term is None or term.opcode != b"constant"]
        value = others[0] if len(others) == 1 else None
    return (
        value is not None
        and value.opcode == b"get-tuple-element"
        and _is_element(value, by_id)
        and int(value.tuple_index) == index
    )


def _loop_origin(id_: int, by_id: Mapping[int, Any]) -> Any:
    """The instruction that computes a value."""
    found = by_id.get(id_)
    for _ in range(_MAX_LOOP_CHAIN):
        if found is None or found.opcode not in _SAME or not found.operand_ids:
            return found
        found = by_id.get(int(found.operand_ids[0]))
    return None


_ENTRY: Final = 1  # field of the breakdown
_SPACE, _BYTES = 2, 3  # fields of an entry
_DEVICE_MEMORY: Final = 1


@lru_cache(maxsize=4096)
def device_memory_bytes(breakdown: bytes) -> int | None:
    """The bytes of one execution; None if the message cannot be read."""
    total = 0
    for number, wire_type, entry, _ in _fields(breakdown):
        if number < 0:
            return None
        if number != _ENTRY or wire_type != wire.DELIMITED:
            continue
        space = size_bytes = 0
        for field, kind, _, value in _fields(entry):
            if field < 0:
                return None
            if kind == wire.VARINT:
                space = value if field == _SPACE else space
                size_bytes = value if field == _BYTES else size_bytes
        total += size_bytes if space == _DEVICE_MEMORY else 0
    return total


def _fields(message: bytes) -> list[tuple[int, int, bytes, int]]:
    """Number, wire type, content and value of each field; the number is -1 for a broken one."""
    fields, at = [], 0
    while at < len(message):
        tag, at = wire.varint(message, at)
        value, at = wire.varint(message, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or kind not in (wire.VARINT, wire.DELIMITED):
            return [(-1, 0, b"", 0)]
        if kind == wire.DELIMITED:
            fields.append((number, kind, message[at : at + value], 0))
            at += value
        else:
            fields.append((number, kind, b"", value))
    return fields if at == len(message) else [(-1, 0, b"", 0)]


_FLOATS: Final = (10, 11, 12, 16)
"""F16, F32, F64 and BF16 of `PrimitiveType` in xla_data.proto."""
_NOT_FORWARD: Final = ("transpose(", "rematted_computation")
"""In the names of what JAX derives, and of what it computes again."""
_SAME_ROWS: Final = (b"bitcast", b"copy", b"copy-start", b"copy-done", b"convert", b"reshape")
_MOST_HOPS: Final = 20


def table_lookups(module: str, message: Any) -> Iterator[TableLookup]:
    """The look-ups of a program.

    `message` is its `HloProto`.
    """
    gathers = [
        (int(computation.id), instruction)
        for computation in message.hlo_module.computations
        for instruction in computation.instructions
        if instruction.opcode == b"gather" and instruction.operand_ids
    ]
    forward = [gather for gather in gathers if _is_forward(gather[1])]
    if not forward:
        return  # most programs have none, and need no index of their instructions
    places = _Places(message)
    for computation, instruction in forward:
        place = _LookupPlace(computation, int(instruction.operand_ids[0]))
        table, result = places.find(place), list(instruction.shape.dimensions)
        if table is None or len(table.shape.dimensions) != 2:
            continue
        rows, width = map(int, table.shape.dimensions)
        is_of_rows = width > 1 and bool(result) and result[-1] == width
        if is_of_rows and table.shape.element_type in _FLOATS and places.is_argument(place):
            fusion = places.fusions.get(computation)
            name = instruction.name if fusion is None else fusion[1].name
            yield TableLookup(module, decoded(name), rows, width, prod(result) // width)


def _is_forward(gather: Any) -> bool:
    path = decoded(gather.metadata.op_name)
    return path.endswith("/gather") and not any(part in path for part in _NOT_FORWARD)


class _LookupPlace(Struct, frozen=True):
    """An instruction, by the ids of its computation and its own."""

    computation: int
    id: int


class _Places:
    """The instructions of a program by id."""

    def __init__(self, message: Any) -> None:
        module = message.hlo_module
        self._entry = int(module.entry_computation_id)
        self._by_id = {
            (int(computation.id), int(instruction.id)): instruction
            for computation in module.computations
            for instruction in computation.instructions
        }
        self.fusions = {
            int(id_): (int(computation.id), instruction)
            for computation in module.computations
            for instruction in computation.instructions
            if instruction.opcode == b"fusion"
            for id_ in instruction.called_computation_ids
        }
        """The computation that runs each fusion's body, and the fusion."""

    def find(self, place: _LookupPlace) -> Any | None:
        """The instruction at a place; None if there is none."""
        return self._by_id.get((place.computation, place.id))

    def is_argument(self, place: _LookupPlace) -> bool:
        """Whether an array is an argument of the program, perhaps in another format."""
        for _ in range(_MOST_HOPS):
            instruction = self.find(place)
            if instruction is None:
                return False
            operands = list(instruction.operand_ids)
            if instruction.opcode == b"parameter":
                if place.computation == self._entry:
                    return True
                outer = self.fusions.get(place.computation)
                number = int(instruction.parameter_number)
                if outer is None or not 0 <= number < len(outer[1].operand_ids):
                    return False
                place = _LookupPlace(outer[0], int(outer[1].operand_ids[number]))
            elif operands and (
                instruction.opcode in _SAME_ROWS
                or (instruction.opcode == b"fusion" and len(operands) == 1)
            ):
                place = _LookupPlace(place.computation, int(operands[0]))
            else:
                return False
        return False


# Each element of the result depends on the element of the operands at the same position.
_ELEMENTWISE: Final = frozenset(
    {
        *(b"abs", b"add", b"and", b"atan2", b"cbrt", b"ceil", b"clamp", b"compare", b"convert"),
        *(b"cosine", b"divide", b"erf", b"exponential", b"exponential-minus-one", b"floor"),
        *(b"log", b"log-plus-one", b"logistic", b"maximum", b"minimum", b"multiply", b"negate"),
        *(b"not", b"or", b"power", b"reduce-precision", b"remainder", b"rsqrt", b"select"),
        *(b"sign", b"sine", b"sqrt", b"subtract", b"tan", b"tanh", b"xor"),
    }
)
# Start and end of a copy between memories, which keeps the layout.
_MOVES: Final = (b"copy-start", b"copy-done")
_CONSTANT: Final = frozenset({b"broadcast", b"constant", b"iota"})
_MAX_TRANSPOSED_CHAIN: Final = 100
"""Instructions between a copy and what computes its array; a fusion has some tens."""


class _Origin(Struct, frozen=True):
    """What computes an array, and whether the array is transposed after that."""

    instruction: Any
    is_transposed: bool


class Transpositions:
    """Looks for transpositions before and after the copies of a program's entry."""

    def __init__(self, entry: Any, computations: Mapping[int, Any]) -> None:
        """Index the entry computation; `computations` has all of the program, by id."""
        self._computations = computations
        self._entry = _by_id(entry)
        self._by_name = {each.name: each for each in self._entry.values()}
        self._root_id = int(entry.root_id)
        self._users: dict[int, list[Any]] = defaultdict(list)
        for instruction in entry.instructions:
            for id_ in set(instruction.operand_ids):
                self._users[int(id_)].append(instruction)

    def explain(self, name: str) -> bool:
        """Whether the copy of this name moves an argument or result that the program transposes."""
        copy = self._by_name.get(name.encode())
        if copy is None or not copy.operand_ids:
            return False
        origin = self._origin(self._entry, int(copy.operand_ids[0]))
        if origin is None or not _is_in_order(origin.instruction.shape):
            return False
        is_argument = origin.instruction.opcode == b"parameter"
        for shape, is_result, is_transposed in self._uses(copy):
            if (is_result and (origin.is_transposed or is_transposed)) or (
                is_argument and is_transposed and _is_in_order(shape)
            ):
                return True
        return False

    def _origin(self, by_id: Mapping[int, Any], id_: int) -> _Origin | None:
        """Follow an array back to the operation that does more than rename or map its elements."""
        is_transposed, callers = False, list[tuple[Mapping[int, Any], Any]]()
        for _ in range(_MAX_TRANSPOSED_CHAIN):
            instruction = by_id.get(id_)
            if instruction is None:
                return None
            opcode, operands = instruction.opcode, [int(of) for of in instruction.operand_ids]
            if opcode == b"bitcast" and operands:
                before = by_id.get(operands[0])
                transposes = (
                    None if before is None else _transposes(before.shape, instruction.shape)
                )
                if transposes is None:
                    return None
                is_transposed |= transposes
                id_ = operands[0]
            elif opcode in _MOVES and operands:
                id_ = operands[0]
            elif opcode == b"parameter" and callers:
                by_id, caller = callers.pop()
                number = int(instruction.parameter_number)
                if number >= len(caller.operand_ids):
                    return None
                id_ = int(caller.operand_ids[number])
            elif opcode in (b"fusion", b"get-tuple-element"):
                index = -1
                if opcode == b"get-tuple-element":
                    index = int(instruction.tuple_index)
                    fusion = by_id.get(operands[0]) if operands else None
                    if fusion is None or fusion.opcode != b"fusion":
                        return _Origin(instruction, is_transposed)
                    instruction = fusion
                called = self._called(instruction)
                if called is None:
                    return None
                callers.append((by_id, instruction))
                by_id, id_ = _by_id(called), int(called.root_id)
                root = by_id.get(id_)
                if index >= 0 and root is not None and root.opcode == b"tuple":
                    id_ = int(root.operand_ids[index]) if index < len(root.operand_ids) else -1
            elif opcode in _ELEMENTWISE:
                mapped = self._mapped(by_id, instruction)
                if mapped is None:
                    return _Origin(instruction, is_transposed)
                id_ = mapped
            else:
                return _Origin(instruction, is_transposed)
        return None

    def _mapped(self, by_id: Mapping[int, Any], instruction: Any) -> int | None:
        """The operand whose elements an elementwise operation maps; None if all are constant."""
        sizes = list(instruction.shape.dimensions)
        for id_ in map(int, instruction.operand_ids):
            operand = by_id.get(id_)
            if operand is not None and list(operand.shape.dimensions) == sizes:
                source = operand
                for _ in range(_MAX_TRANSPOSED_CHAIN):
                    if source is None or source.opcode != b"convert" or not source.operand_ids:
                        break
                    source = by_id.get(int(source.operand_ids[0]))
                if source is not None and source.opcode not in _CONSTANT:
                    return id_
        return None

    def _uses(self, copy: Any) -> Iterator[tuple[Any, bool, bool]]:
        """How the copied array is used: its shape there, whether as a result, and transposed."""
        pending: list[tuple[Any, Mapping[int, list[Any]], int, bool]] = [
            (copy, self._users, self._root_id, False)
        ]
        for _ in range(_MAX_TRANSPOSED_CHAIN):
            if not pending:
                return
            array, users, root_id, is_transposed = pending.pop()
            is_entry = users is self._users
            if is_entry and int(array.id) == root_id:
                yield array.shape, True, is_transposed
            for user in users.get(int(array.id), ()):
                if user.opcode == b"bitcast":
                    transposes = _transposes(array.shape, user.shape)
                    if transposes is not None:
                        pending.append((user, users, root_id, is_transposed or transposes))
                elif user.opcode in _MOVES:
                    pending.append((user, users, root_id, is_transposed))
                elif user.opcode == b"tuple":
                    yield array.shape, is_entry and int(user.id) == root_id, is_transposed
                elif user.opcode == b"fusion" and (called := self._called(user)) is not None:
                    numbers = [n for n, id_ in enumerate(user.operand_ids) if id_ == array.id]
                    inside = _users(called.instructions)
                    pending += [
                        (parameter, inside, int(called.root_id), is_transposed)
                        for parameter in called.instructions
                        if parameter.opcode == b"parameter"
                        and int(parameter.parameter_number) in numbers
                    ]
                else:
                    yield array.shape, False, is_transposed

    def _called(self, fusion: Any) -> Any:
        ids = fusion.called_computation_ids
        return self._computations.get(int(ids[0])) if ids else None


def _by_id(computation: Any) -> dict[int, Any]:
    return {int(instruction.id): instruction for instruction in computation.instructions}


def _users(instructions: Iterable[Any]) -> dict[int, list[Any]]:
    users = defaultdict(list)
    for instruction in instructions:
        for id_ in set(instruction.operand_ids):
            users[int(id_)].append(instruction)
    return users


def _stored(shape: Any) -> list[tuple[int, int]]:
    """Dimensions and their sizes in the order of memory, the slowest first, without those of 1."""
    sizes = list(shape.dimensions)
    order = [int(dim) for dim in shape.layout.minor_to_major] or list(reversed(range(len(sizes))))
    return [(dim, sizes[dim]) for dim in reversed(order) if dim < len(sizes) and sizes[dim] != 1]


def _is_in_order(shape: Any) -> bool:
    """Whether the dimensions are stored in their order, as programs take and return arrays."""
    dims = [dim for dim, _ in _stored(shape)]
    return dims == sorted(dims)


def _transposes(before: Any, after: Any) -> bool | None:
    """Whether a bitcast changes the order of dimensions; None if it is not known to keep them.

    Dimensions of the two that lie at the same place in memory are the same, or parts of each other:
    (256, 128) and (32, 8, 128) are three parts.
    """
    parts, old, new = [], _stored(before), _stored(after)
    while old and new:
        (old_dim, old_size), (new_dim, new_size) = old.pop(), new.pop()
        size = min(old_size, new_size)
        if size < 1 or old_size % size or new_size % size:
            return None
        parts.append((old_dim, new_dim))
        if old_size > size:
            old.append((old_dim, old_size // size))
        if new_size > size:
            new.append((new_dim, new_size // size))
    if old or new:
        return None
    parts.reverse()
    # Sorting is stable, so the parts of one dimension keep their order in memory.
    by_old = sorted(range(len(parts)), key=lambda part: parts[part][0])
    by_new = sorted(range(len(parts)), key=lambda part: parts[part][1])
    return by_old != by_new
