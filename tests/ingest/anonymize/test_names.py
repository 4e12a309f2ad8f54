from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.anonymize.names import Names

NAMES = Names(b"key")


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#7",
        "Optimizer.step#SGD.step",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "nccl:all_reduce",
        "Torch-Compiled Region: 0/0",
        "DistributedDataParallel.forward",
        "execute_context_2(6144)_generation_3(3)",
        "execute_3_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk99sqsq3sqsk99)",
        "step[DECODE bs=32]",
        "step[EXTEND bs=1 toks=107]",
        "step[TARGET_VERIFY bs=8]",
        "[Executor] _forward_step 7: 2 ctx reqs, 6144 ctx tokens, 3 gen reqs",
        "decode[bs=117/128 tok=117 d=117]",
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
    ],
)
def test_markers_stay(name: str) -> None:
    assert NAMES.marker(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "aten::_scaled_dot_product_flash_attention",
        "autograd::engine::evaluate_function: ConvolutionBackward0",
        "IteratorGetNext::DoCompute",
        "Iterator::Root::MapAndBatch::Prefetch",
        "PjitFunction(<lambda>)",
        "%all-reduce.3 = f32[8,128]{1,0:T(8,128)} all-reduce(f32[8,128]{1,0} %fusion.1)",
    ],
)
def test_operators_stay(name: str) -> None:
    assert NAMES.operator(name) == name


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (
            "/home/jdoe/venv/lib/python3.11/site-packages/torch/nn/modules/module.py(1501): _call",
            "site-packages/torch/nn/modules/module.py(1501): _call",
        ),
        (
            "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(12): run_batch",
            "sglang/srt/managers/scheduler.py(12): run_batch",
        ),
        (
            "torch/utils/data/dataloader.py(701): __next__",
            "torch/utils/data/dataloader.py(701): __next__",
        ),
    ],
)
def test_frames_of_frameworks_keep_the_path_inside_the_package(frame: str, expected: str) -> None:
    assert NAMES.frame(frame) == expected


def test_names_of_the_user_are_hashed() -> None:
    hashed = NAMES.frame("/home/jdoe/acme/ranker.py(12): score_customers")
    assert not {"jdoe", "acme", "ranker", "customers"} & {*hashed.replace("/", " ").split()}
    assert "(12): " in hashed
    # The same word has the same hash, in its own case.
    assert NAMES.marker("acme") in hashed
    assert NAMES.marker("Acme") == NAMES.marker("acme").capitalize()
    assert NAMES.marker("AcmeAttention").endswith("Attention")


def test_hashes_depend_on_the_key() -> None:
    assert Names(b"other").host("node1") != NAMES.host("node1") == Names(b"key").host("node1")


def test_network_addresses_are_removed() -> None:
    assert NAMES.marker("step on 10.1.2.3") == "step on 0.0.0.0"
