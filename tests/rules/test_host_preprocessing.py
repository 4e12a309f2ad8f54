from __future__ import annotations

from pathlib import Path

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.input.stalls import HostPreprocessing
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, host, iterator
from tb_perfadvisor.trace import EventKind
from tests.support.corpus_traces import read


def frame(name: str) -> Symbol:
    return host(name, EventKind.PYTHON)


# Names that PyTorch 2.13 records for datasets that read files and decode them with Pillow 13.
LEGEND = {
    "D": host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT),
    "f": frame("torch/utils/data/_utils/fetch.py(49): fetch"),
    "c": frame("torch/utils/data/_utils/collate.py(340): default_collate"),
    "r": frame("<built-in method read of _io.BufferedReader object at 0x7f7b35aa5170>"),
    "j": frame("<built-in method decode of ImagingDecoder object at 0x7fd49d0a7ab0>"),
    "w": frame("torch/utils/data/dataloader.py(1278): _try_get_data"),
    "q": frame("<built-in function read>"),
}
# A fetch of 6 ms reads for 1 ms, decodes for 3 ms and collates for 1 ms.
SLOW = """
    cell 1ms
    step   |...........|...........|...........|
    main   |DDDDDDoo...|DDDDDDoo...|DDDDDDoo...|
    main   |fffff......|fffff......|fffff......|
    main   |rjjjc......|rjjjc......|rjjjc......|
    gpu 7  |.......KKKK|.......KKKK|.......KKKK|
"""
FIXED = """
    cell 1ms
    step   |........|........|........|
    main   |DDDoo...|DDDoo...|DDDoo...|
    main   |ff......|ff......|ff......|
    main   |rc......|rc......|rc......|
    gpu 7  |....KKKK|....KKKK|....KKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        HostPreprocessing,
        slow=SLOW,
        fixed=FIXED,
        saves="3ms",
        legend=LEGEND,
        settings={"minimum_share": 0.15},
        exactly=False,
    )
    # Nothing of the stage remains in the drawing. As measured, 15 % does.
    assert checked.expected_ns == 2_550_000
    finding = checked.findings[0]
    assert finding.summary.startswith(
        "Preprocessing (the dataset's own code) makes the device wait 3.00 ms"
    )
    # 3 of the 6 ms of a fetch.
    assert "50.0 % of the wait for input" in finding.summary
    assert finding.instance == "decode of ImagingDecoder"
    stages, calls = finding.evidence
    assert isinstance(stages, Table)
    assert isinstance(calls, Table)
    assert dict(stages.rows) == {
        "Reading": 3_000_000,
        "Preprocessing (the dataset's own code: decoding, transforming)": 9_000_000,
        "Collating samples into batches": 3_000_000,
        "(not recorded)": 3_000_000,
    }
    assert calls.rows[0] == (
        "decode of ImagingDecoder",
        "torch/utils/data/_utils/fetch.py(49): fetch",
        3,
        9_000_000,
    )


def test_each_stage_has_its_own_remedy() -> None:
    reading = SLOW.replace("rjjjc", "rrrrc")
    (finding,) = find(HostPreprocessing, reading, legend=LEGEND) or ()
    assert finding.summary.startswith("Reading files makes the device wait 4.00 ms")
    assert "shards" in finding.remedies[0].text


def test_no_stage_dominates() -> None:
    even = SLOW.replace("rjjjc", "rrjcc")
    assert find(HostPreprocessing, even, legend=LEGEND) == ()
    assert len(find(HostPreprocessing, SLOW, legend=LEGEND) or ()) == 1


def test_waiting_for_workers_is_not_a_stage() -> None:
    # The training thread only reads from a pipe what the workers produced.
    waiting = SLOW.replace("fffff", "wwwww").replace("rjjjc", "qqqqq")
    assert find(HostPreprocessing, waiting, legend=LEGEND) is None


def test_without_python_frames_it_is_not_applicable() -> None:
    plain = SLOW.replace("fffff", ".....").replace("rjjjc", ".....")
    assert find(HostPreprocessing, plain, legend=LEGEND) is None


def test_just_below_and_just_above_the_limits() -> None:
    # 3 of 11 ms: 27.3 % of the step, and half of the wait.
    for settings, count in (
        ({"minimum_share": 0.27}, 1),
        ({"minimum_share": 0.28}, 0),
        ({"dominating_share": 0.49}, 1),
        ({"dominating_share": 0.51}, 0),
    ):
        assert len(find(HostPreprocessing, SLOW, legend=LEGEND, settings=settings) or ()) == count


TF_DATA = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDDDo...|DDDDDDo...|
    main   |MMMMMM....|MMMMMM....|
    main   |T.........|T.........|
    gpu 7  |......KKKK|......KKKK|
"""
TF_DATA_FIXED = """
    cell 1ms
    step   |......|......|
    main   |DDo...|DDo...|
    main   |MM....|MM....|
    main   |TT....|TT....|
    gpu 7  |..KKKK|..KKKK|
"""
ITERATORS = {
    "M": iterator("Root::Map", iterator=1),
    "T": iterator("Root::Map::TFRecord", iterator=2, parent=1),
}


def test_names_the_tf_data_iterator() -> None:
    # The map takes 5 of 6 ms of waiting, the file 1 ms; the fixed map takes none.
    (finding,) = find(HostPreprocessing, TF_DATA, legend=ITERATORS, framework="tensorflow") or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * 5_000_000
    assert finding.instance == "Map"
    assert "tf.data.AUTOTUNE" in finding.remedies[0].snippet


def test_separates_batching_from_reading_in_tf_data() -> None:
    batch = {
        "M": iterator("Root::BatchV2", iterator=1),
        "T": iterator("Root::BatchV2::TFRecord", iterator=2, parent=1),
    }
    (finding,) = find(HostPreprocessing, TF_DATA, legend=batch, framework="tensorflow") or ()
    assert finding.summary.startswith("Collating")
    (finding,) = find(HostPreprocessing, TF_DATA_FIXED, legend=batch, framework="tensorflow") or ()
    assert finding.summary.startswith("Reading files")


def test_names_the_iterator_in_a_recording(corpus: Path) -> None:
    # 32 calls of 2 ms in each step: Root::MapAndBatch is XProf's costliest iterator as well.
    trace = read(corpus, "local-tf-cpu/keras_slow_input/**/*.xplane.pb")
    (finding,) = find(HostPreprocessing, trace) or ()
    assert finding.instance == "MapAndBatch"
    assert not find(HostPreprocessing, read(corpus, "local-tf-cpu/keras_prefetch_fast/**/*.pb"))


def test_passing_batches_on_is_not_preprocessing(corpus: Path) -> None:
    # TensorFlow's own Generator only passes batches between devices.
    trace = read(corpus, "xprof-demo/plugins/profile/GPU-multi-worker/*.xplane.pb")
    assert not find(HostPreprocessing, trace)
