from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.rules.evidence.synchronization import cause_of, changes_for
from tb_perfadvisor.signals.host.waits import WaitCallSite
from tb_perfadvisor.trace import CopyDirection

TO_DEVICE, TO_HOST = CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST
COPY = "aten::copy_ aten::_to_copy aten::to"
ITEM = "aten::_local_scalar_dense aten::item"


def site(
    operators: str, copies: CopyDirection = CopyDirection.UNKNOWN, **given: object
) -> WaitCallSite:
    defaults: dict[str, object] = {
        "rows": np.array([0], dtype=np.int32),
        "calls": ("cudaStreamSynchronize",),
        "operators": tuple(operators.split()),
        "node": "",
        "forward": "",
        "module": None,
        "line": None,
        "copies": copies,
        "frame": "",
        "checks_gradients": False,
        "count": 1,
        "duration_ns": 1,
        "induced_ns": 1,
    }
    return WaitCallSite(**{**defaults, **given})  # type: ignore[arg-type]


# Operators, innermost first, recorded in sam-fast (A100, 2023) unless another source is named.
@pytest.mark.parametrize(
    ("call_site", "label"),
    [
        (site(ITEM, TO_HOST), ".item()"),
        (site(f"{ITEM} aten::is_nonzero", TO_HOST), "tensors as conditions (if x:)"),
        (site("aten::nonzero aten::index", TO_HOST), "x[mask]"),
        (site("aten::nonzero aten::_index_put_impl_ aten::index_put_", TO_HOST), "x[mask]"),
        (site("aten::nonzero", TO_HOST), "nonzero"),
        (site(COPY, TO_HOST), ".cpu()"),
        (site(COPY, TO_DEVICE), "host tensors (.to(device))"),
        (site(f"{COPY} aten::index", TO_DEVICE), "indices on the host"),
        # aten/src/ATen/native/cuda/IndexKernel.cpp: masked_select is an index with a mask.
        (site("aten::nonzero aten::index aten::masked_select", TO_HOST), "masked_select"),
        # TensorAdvancedIndexing.cpp, _scatter_via_index_put: strides come from the host.
        (
            site(f"{COPY} aten::scatter_add_ aten::gather_backward", TO_DEVICE,
                 node="GatherBackward0"),
            "torch.gather's deterministic backward",
        ),
        (
            site("aten::_index_put_impl_ aten::index_put_", node="IndexBackward0"),
            "the backward of indexing (index_put_)",
        ),
        # torch/amp/grad_scaler.py, _maybe_opt_step.
        (site(ITEM, TO_HOST, checks_gradients=True), "GradScaler's check for infinities"),
        (
            site(ITEM, TO_HOST, frame="torch/amp/grad_scaler.py(352): _maybe_opt_step"),
            "GradScaler's check for infinities",
        ),
        (site(ITEM, TO_HOST, frame="torch/_tensor_str.py(698): _str"), "printing tensors"),
        (site("", calls=("cudaDeviceSynchronize",)), "cudaDeviceSynchronize()"),
    ],
)  # fmt: skip
def test_operators_of_a_call_site_identify_its_cause(call_site: WaitCallSite, label: str) -> None:
    cause = cause_of(call_site)
    assert cause is not None
    assert cause.label == label


@pytest.mark.parametrize(
    "call_site",
    [
        # DistributedDataParallel's own timer (recorded in HTA's nccl_parser_config).
        site("", calls=("cudaEventSynchronize",)),
        site("", calls=("cudaStreamSynchronize",)),
        site("myops::fused_norm"),
        site("aten::copy_", CopyDirection.DEVICE_TO_DEVICE),
        site("aten::scatter_add_", node="GatherBackward0"),  # one kernel with atomics
    ],
)
def test_other_call_sites_have_no_known_cause(call_site: WaitCallSite) -> None:
    assert cause_of(call_site) is None


def test_changes_are_in_call_site_order_without_duplicates() -> None:
    sites = (site(ITEM), site("aten::nonzero"), site(ITEM), site("custom::op"), site(COPY, TO_HOST))
    # ".item()" and ".cpu()" both advise to overlap a server's schedule.
    item, copy = ("read-rarely", "overlapped-schedule"), ("results-to-pinned-memory",)
    assert changes_for(sites, 4) == (*item, "static-nonzero", *copy)
    assert changes_for(sites, 2) == (*item, "static-nonzero")
