from __future__ import annotations

import os
import sys

import pytest

from tb_perfadvisor.engine.two_ends import TwoEnds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory is Linux's")


def test_numbers_are_taken_from_both_ends_until_they_meet() -> None:
    ends = TwoEnds(3)
    assert [ends.take_first(), ends.take_last(), ends.take_last()] == [0, 2, 1]
    assert ends.take_first() is ends.take_last() is None


def test_the_last_ones_may_be_kept_for_who_takes_from_the_end() -> None:
    ends = TwoEnds(3, only_last=2)
    assert (ends.take_first(), ends.take_first()) == (0, None)
    assert [ends.take_last(), ends.take_last(), ends.take_last()] == [2, 1, None]


def test_of_nothing_nothing_is_taken() -> None:
    assert TwoEnds(0).take_last() is None


def test_two_processes_take_each_number_once() -> None:
    count = 2000
    ends = TwoEnds(count)
    told, telling = os.pipe()
    fork = os.fork()
    take = ends.take_first if fork else ends.take_last
    taken = []
    while (number := take()) is not None:
        taken.append(number)
    if not fork:
        os.write(telling, len(taken).to_bytes(4, "little"))
        os._exit(0)
    os.waitpid(fork, 0)
    others = int.from_bytes(os.read(told, 4), "little")
    os.close(told)
    os.close(telling)
    # What is taken here are the first ones, in order; the rest was taken there.
    assert taken == list(range(len(taken)))
    assert len(taken) + others == count
