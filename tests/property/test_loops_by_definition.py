"""Loops drawn at random: which values need the trip before, by what a change of one changes."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.program.loops import cycles, loops_of
from tests.support.night import examples
from tests.support.program_values import program

randoms = st.integers(0, 2**32).map(Random)
PRIME = 2**61 - 1
"""Numbers are remainders by it, so that none gets too large; different ones hardly ever meet."""
OF_TWO = ("add", "multiply")


def drawn_reads(random: Random, count: int) -> dict[int, list[int]]:
    return {
        node: [random.randrange(count) for _ in range(random.choice((0, 1, 1, 2)))]
        for node in range(count)
    }


def reached(reads: dict[int, list[int]]) -> dict[int, set[int]]:
    """What each node reads, and what that reads, and so on."""
    found = {node: set(of) for node, of in reads.items()}
    for _ in found:
        for of in found.values():
            of |= {end for node in set(of) for end in found[node]}
    return found


@examples(100)
@given(randoms)
def test_nodes_on_a_cycle_reach_one_another(random: Random) -> None:
    reads = drawn_reads(random, random.randint(1, 12))
    ends = reached(reads)
    expected = {
        frozenset(other for other in reads if other in ends[node] and node in ends[other])
        for node in reads
        if node in ends[node]
    }
    assert set(map(frozenset, cycles(reads))) == expected


def derivatives(
    body: list[tuple[str, list[int]]], changed: int, random: Random, trips: int
) -> list[set[int]]:
    """What each value changes by in each trip, if one value of the trip before changes by 1."""
    values = [random.randrange(2, PRIME) for _ in body]
    slopes = [int(row == changed) for row in range(len(body))]
    seen: list[set[int]] = [set() for _ in body]
    for _ in range(trips):
        for row, (opcode, operands) in enumerate(body):
            value, slope = values[operands[0]], slopes[operands[0]]
            other, other_slope = values[operands[-1]], slopes[operands[-1]]
            if opcode == "add":
                value, slope = value + other, slope + other_slope
            elif opcode == "multiply":
                value, slope = value * other, slope * other + value * other_slope
            elif opcode == "tanh":  # anything that is not linear
                value, slope = value**3, 3 * value**2 * slope
            values[row], slopes[row] = value % PRIME, slope % PRIME
            seen[row].add(slopes[row])
    return seen


@examples(100)
@given(randoms)
def test_a_sum_changes_by_what_it_begins_with_and_changes_nothing_else(random: Random) -> None:
    count = random.randint(1, 7)
    body = []
    for _ in range(count):
        opcode = random.choice(("add", "add", "multiply", "copy", "tanh"))
        # What is computed later is read from the trip before.
        body.append((opcode, [random.randrange(count) for _ in range(1 + (opcode in OF_TWO))]))
    text = "\n".join(
        f"%v{row} = f32[8]{{0}} {opcode}({', '.join(f'f32[8] %v{of}' for of in operands)})"
        " // runs=16"
        for row, (opcode, operands) in enumerate(body)
    )
    (found,) = loops_of(program(text))
    ends = reached(dict(enumerate(operands for _, operands in body)))
    read = {of for _, operands in body for of in operands}
    # What is only copied from trip to trip stays what it was at the beginning.
    cycles_of = {row: {other for other in ends[row] if row in ends[other]} for row in range(count)}
    cycles_of = {
        row: {of for of in cycle if any(body[of][0] != "copy" for of in cycle)}
        for row, cycle in cycles_of.items()
    }
    for row, cycle in cycles_of.items():
        changes = [derivatives(body, changed, random, 3 * count) for changed in sorted(cycle)]
        is_sum = bool(cycle) and all(
            seen <= ({0, 1} if other in cycle else {0})
            for change in changes
            for other, seen in enumerate(change)
            if other in read
        )
        assert (row in found.summed) == is_sum
        assert (row in found.serial) == (bool(cycle) and not is_sum)
        assert (row in found.varying) == any(cycles_of[of] for of in {row, *ends[row]})
        serial = {other for other in range(count) if other in found.serial}
        assert (row in found.after) == bool(serial & {row, *ends[row]})
