from __future__ import annotations

from tb_perfadvisor.rules.input.small_file_reads import SmallFileReads
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, host
from tb_perfadvisor.trace import EventKind


def frame(name: str) -> Symbol:
    return host(name, EventKind.PYTHON)


# As PyTorch 2.13 records them.
LEGEND = {
    "D": host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT),
    "f": frame("torch/utils/data/_utils/fetch.py(49): fetch"),
    "n": frame("<built-in function open>"),
    "r": frame("<built-in method read of _io.BufferedReader object at 0x7f7b35aa5170>"),
    "x": frame("<built-in method __exit__ of _io.BufferedReader object at 0x7f7b35aa5170>"),
}
# Four samples of a batch, each of a file of its own: 1 ms to open, 1 ms to read, 1 ms to close.
SLOW = """
    cell 1ms
    step   |..................|..................|..................|
    main   |DDDDDDDDDDDDoo....|DDDDDDDDDDDDoo....|DDDDDDDDDDDDoo....|
    main   |ffffffffffff......|ffffffffffff......|ffffffffffff......|
    main   |nrxnrxnrxnrx......|nrxnrxnrxnrx......|nrxnrxnrxnrx......|
    gpu 7  |.............KKKKK|.............KKKKK|.............KKKKK|
"""
# The same bytes of a file that is open.
FIXED = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    main   |ffff......|ffff......|ffff......|
    main   |r'''......|r'''......|r'''......|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""
FOUR = {"minimum_files": 4.0}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        SmallFileReads, slow=SLOW, fixed=FIXED, saves="8ms", legend=LEGEND, settings=FOUR
    )
    finding = checked.findings[0]
    assert "opens 4 files per step" in finding.summary
    assert finding.saving is not None
    # Opening and closing four files takes 8 ms, reading them another 4: over three steps.
    assert finding.saving.low_ns == 24_000_000
    assert finding.saving.high_ns == 36_000_000


def test_a_few_large_files_are_none() -> None:
    assert find(SmallFileReads, SLOW, legend=LEGEND) == ()  # four are below the limit


def test_without_frames_it_is_not_known() -> None:
    plain = SLOW.replace("f", ".").replace("nrx", "...")
    assert find(SmallFileReads, plain, legend=LEGEND, settings=FOUR) is None


def test_just_below_and_just_above_the_limits() -> None:
    # 8 of 18 ms are 44.4 %.
    for settings, count in (
        (FOUR | {"minimum_share": 0.44}, 1),
        (FOUR | {"minimum_share": 0.45}, 0),
        ({"minimum_files": 4.0}, 1),
        ({"minimum_files": 4.1}, 0),
    ):
        assert len(find(SmallFileReads, SLOW, legend=LEGEND, settings=settings) or ()) == count
