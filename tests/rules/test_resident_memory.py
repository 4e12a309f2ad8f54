from __future__ import annotations

from tb_perfadvisor.rules.memory.at_peak import ResidentMemory
from tb_perfadvisor.testing import check_rule, find
from tests.support.memory_snapshots import Frame, Heap

MIB, GIB = 1 << 20, 1 << 30
LOAD: Frame = ("/p/backend.py", 190, "allocate")
WEIGHTS: Frame = ("/p/model.py", 12, "init_weight")
WORK: Frame = ("/p/model.py", 50, "generate")


def serving(weights: int, cache: int = 1) -> Heap:
    """Weights that are loaded in the history, and requests that take some GiB for a while."""
    heap = Heap()
    for _ in range(weights):
        heap.make(GIB, LOAD, WEIGHTS)
    for _ in range(3):
        heap.drop(*[heap.make(GIB, WORK) for _ in range(cache)])
    return heap


def test_weights_that_fill_the_device() -> None:
    checked = check_rule(ResidentMemory, slow=serving(11).trace(), fixed=serving(2).trace())
    (finding,) = checked.findings
    assert finding.memory is not None
    assert finding.memory.bytes == 11 * GIB // 2
    assert finding.instance == "11.0 GiB of weights"
    assert "11.0 GiB of the 12.0 GiB at the peak (91.7 %) stays allocated" in finding.summary
    # Splitting them loses nothing; fewer bits do.
    assert [remedy.is_lossy for remedy in finding.remedies] == [False, True]
    changes = {remedy.change for remedy in finding.remedies}
    assert not changes & {"expandable-segments", "activation-checkpointing", "less-memory"}


def test_when_memory_ran_out_it_matters_more() -> None:
    heap = serving(11)
    heap.snapshot.fail(2 * GIB, 0, ())
    (finding,) = find(ResidentMemory, heap.trace()) or ()
    assert finding.severity == "medium"


def test_a_small_model_is_no_problem() -> None:
    heap = Heap(*[MIB] * 900)
    heap.drop(heap.make(MIB, WORK))
    assert find(ResidentMemory, heap.trace()) == ()


def test_an_inference_server_fills_the_memory_on_purpose() -> None:
    heap = serving(11)
    heap.make(GIB, ("/v/vllm/v1/worker/gpu_worker.py", 10, "init_kv_cache"))
    assert find(ResidentMemory, heap.trace()) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 8 of 10 GiB, and 7 of 9.
    assert find(ResidentMemory, serving(8, cache=2).trace())
    assert find(ResidentMemory, serving(7, cache=2).trace()) == ()
