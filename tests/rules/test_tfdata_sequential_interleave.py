"""Also fires on a recording: TensorFlow 2.21, sixteen local TFRecord files decoded inside an
interleave without parallel calls, and 5 ms of other work per step. Without the profiler, the step
took 26.4 ms, and 19.5 ms with two parallel calls on the recording machine's two cores."""

from __future__ import annotations

from tb_perfadvisor.rules.input.tfdata import TfdataSequentialInterleave
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import iterator

SLOW = """
    cell 1ms
    step   |............|............|
    main   |DDDDDDDDo...|DDDDDDDDo...|
    main   |IIIIIIII....|IIIIIIII....|
    main   |TTTTTTTT....|TTTTTTTT....|
    gpu 7  |........KKKK|........KKKK|
"""
# Four files at a time take a quarter of the 8 ms.
FIXED = """
    cell 1ms
    step   |......|......|
    main   |DDo...|DDo...|
    main   |PP....|PP....|
    reader |QQ....|QQ....|
    gpu 7  |..KKKK|..KKKK|
"""
LEGEND = {
    "I": iterator("Root::Interleave", iterator=1),
    "T": iterator("Root::Interleave[0]::TFRecord", iterator=2, parent=1),
    "P": iterator("Root::ParallelInterleaveV4", iterator=1),
    "Q": iterator("Root::ParallelInterleaveV4[0]::TFRecord", iterator=2, parent=1),
}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TfdataSequentialInterleave,
        slow=SLOW,
        fixed=FIXED,
        saves="6ms",
        legend=LEGEND,
        framework="tensorflow",
    )
    assert checked.expected_ns == 6_000_000


def test_decoding_spreads_over_the_cores_only() -> None:
    # Two cores: half of 8 ms of decoding is saved, not three quarters.
    legend = LEGEND | {
        "I": iterator("Root::Interleave", iterator=1, cores=2),
        "T": iterator("Root::Interleave[0]::Map", iterator=2, parent=1),
    }
    trace = SLOW.replace("    gpu 7", "    main   |X...........|X...........|\n    gpu 7")
    legend["X"] = iterator("Root::Interleave[0]::Map::TFRecord", iterator=3, parent=2)
    (finding,) = (
        find(TfdataSequentialInterleave, trace, legend=legend, framework="tensorflow") or ()
    )
    assert finding.saving is not None
    # 7 ms of decoding to 3.5 ms, 1 ms of reading to 0.25 ms.
    assert finding.saving.expected_ns == 2 * 4_250_000


def test_finds_a_list_of_files_without_an_interleave() -> None:
    # A reader of several files is a FlatMap over their names: a new iterator for each file.
    legend = {
        "I": iterator("Root::FlatMap", iterator=1),
        "T": iterator("Root::FlatMap[0]::TFRecord", iterator=2, parent=1),
        "U": iterator("Root::FlatMap[1]::TFRecord", iterator=3, parent=1),
    }
    one_file = find(TfdataSequentialInterleave, SLOW, legend=legend, framework="tensorflow")
    several = SLOW.replace("|TTTTTTTT....|TTTTTTTT....|", "|TTTTTTTT....|UUUUUUUU....|")
    two_files = find(TfdataSequentialInterleave, several, legend=legend, framework="tensorflow")
    assert (len(one_file or ()), len(two_files or ())) == (0, 1)


def test_an_interleave_that_reads_no_files_is_left_alone() -> None:
    legend = LEGEND | {"T": iterator("Root::Interleave[0]::Range", iterator=2, parent=1)}
    options = {"legend": legend, "framework": "tensorflow"}
    assert find(TfdataSequentialInterleave, SLOW, **options) == ()
