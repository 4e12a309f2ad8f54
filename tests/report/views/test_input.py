from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.views.input import InputView, make_input_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.symbols import iterator
from tests.support.corpus_traces import read

# Each of two steps waits 5 ms: 2 ms for a file, and 3 ms for the prefetch.
DRAWING = """
    cell 1ms
    step   |.........|.........|
    main   |DDDDDo...|DDDDDo...|
    main   |PPPPP....|PPPPP....|
    ahead  |.TT......|.TT......|
    gpu 7  |.....KKKK|.....KKKK|
"""
LEGEND = {
    "P": iterator(
        "Root::Prefetch", iterator=1, buffer_size=2, cores=4, dataset="PrefetchDataset:5"
    ),
    "T": iterator("Root::Prefetch::TFRecord", iterator=2, parent=1, shapes="[]", types="string"),
}


def view_of(text: str = DRAWING) -> InputView:
    trace = draw(text, legend=LEGEND, framework="tensorflow")
    return make_input_view(Signals(run_of(trace)))


def test_the_tree_of_iterators_and_the_waits() -> None:
    view = view_of()
    prefetch, source = view.iterators
    assert (prefetch.parent, source.parent) == (None, 0)
    assert (prefetch.stall_ns, source.stall_ns) == (3_000_000, 2_000_000)
    assert (prefetch.calls, prefetch.total_ns) == (2, 5_000_000)
    assert (prefetch.buffer_size, prefetch.dataset) == (2, "PrefetchDataset:5")
    assert (source.parallelism, source.function_ns, source.types) == (None, None, "string")
    assert (view.stall_ns, view.bottleneck, view.cores) == (5_000_000, 0, 4)
    parts = (view.reading_on_demand_ns, view.reading_ahead_ns)
    assert parts == (0, 2_000_000)
    assert (view.preprocessing_ns, view.elsewhere_ns) == (3_000_000, 0)
    assert msgspec.json.decode(msgspec.json.encode(view), type=InputView) == view


def test_without_an_input_pipeline() -> None:
    view = view_of("cell 1ms\nstep  |....|\nmain  |o...|\ngpu 7 |.KKK|")
    assert (view.stall_ns, view.iterators) == (None, [])


def test_the_view_of_a_recorded_pipeline(corpus: Path) -> None:
    report = analyze(
        next(corpus.glob("local-tf-cpu/keras_slow_input")), config=Config(with_views=True)
    )
    assert report.views is not None
    view = msgspec.convert(report.views["input"], InputView)
    assert view.bottleneck is not None
    assert view.iterators[view.bottleneck].path == "Root::MapAndBatch"
    # 66.5 of 84 ms, like the rule.
    assert view.stall_ns == pytest.approx(66.5e6, rel=0.01)


def test_a_profile_with_only_totals(corpus: Path) -> None:
    trace = read(corpus, "xprof-demo/plugins/profile/GPU-input-bound")
    view = make_input_view(Signals(run_of(trace)))
    by_path = {iterator.path: iterator for iterator in view.iterators}
    # From the file's own table: 80 calls take 89.28 s in total, and 81.37 % of 1,114.5 ms.
    generator = by_path["Prefetch::Generator"]
    assert (generator.calls, generator.self_ns) == (80, 89_282_140_152)
    assert view.iterators[generator.parent or 0].path == "Prefetch"
    assert generator.stall_ns is None
    # The iterators of all files are one.
    assert len([path for path in by_path if path.endswith("::TFRecord")]) == 1
    assert view.stall_ns == pytest.approx(0.8137 * 1_114_498_923, rel=1e-3)
