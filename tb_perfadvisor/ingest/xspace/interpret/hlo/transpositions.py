"""Which copies of an XLA program are there because the program transposes its arrays.

XLA transposes an array by renaming its dimensions, a bitcast that costs nothing. A program takes
and returns arrays in a fixed layout, though. If it transposes an argument or a result, a copy has
to move the elements. Without the transposition, the array has that layout already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

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
_MAX_CHAIN: Final = 100
"""Instructions between a copy and what computes its array; a fusion has some tens."""


class _Origin(Struct, frozen=True):
    """What computes an array, and whether the array is transposed after that."""

    instruction: Any
    is_transposed: bool


class Transpositions:
    """Looks for transpositions before and after the copies of a program's entry."""

    def __init__(self, entry: Any, computations: Mapping[int, Any]) -> None:
        """Index the entry computation.

        Args:
            entry: Its message.
            computations: All computations of the program by id.
        """
        self._computations = computations
        self._entry = _by_id(entry)
        self._by_name = {each.name: each for each in self._entry.values()}
        self._root_id = int(entry.root_id)
        self._users: dict[int, list[Any]] = defaultdict(list)
        for instruction in entry.instructions:
            for id_ in set(instruction.operand_ids):
                self._users[int(id_)].append(instruction)

    def explain(self, name: str) -> bool:
        """Whether a copy of the entry moves an argument or result that the program transposes.

        Args:
            name: The name of the copy.
        """
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
        for _ in range(_MAX_CHAIN):
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
                for _ in range(_MAX_CHAIN):
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
        for _ in range(_MAX_CHAIN):
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
