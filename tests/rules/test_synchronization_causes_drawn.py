"""Each known cause of a wait, drawn with the operators that PyTorch runs for it.

The operators are those of recorded profiles or of PyTorch's sources, as in test_wait_causes.py.
"""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.evidence.synchronization import CAUSES
from tb_perfadvisor.rules.launch.waits import BackwardSynchronization, DeviceSynchronization
from tb_perfadvisor.testing import find
from tb_perfadvisor.testing.symbols import Symbol, copy, host, operator
from tb_perfadvisor.trace import CopyDirection, EventKind

TO_HOST = copy("Memcpy DtoH (Device -> Pageable)", CopyDirection.DEVICE_TO_HOST, pageable=1)
TO_DEVICE = copy("Memcpy HtoD (Pageable -> Device)", CopyDirection.HOST_TO_DEVICE, pageable=1)
COPY = "aten::to aten::_to_copy aten::copy_"
ITEM = "aten::item aten::_local_scalar_dense"
NODE = "autograd::engine::evaluate_function: "
CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"
# Each step: an operator, four cells of waiting, another operator that the device waits for.
LANES = """
    cell 10us
    step   |..........|..........|
    {thread} |p.........|p.........|
    {inside}
    {thread} |.LSSSo....|.LSSSo....|
    gpu 7  |KKKKq.KKKK|KKKKq.KKKK|
"""

CAUSED = [
    ("torch.gather's deterministic backward", "GatherBackward0",
     f"{NODE}GatherBackward0 aten::gather_backward aten::scatter_add_ {COPY}", TO_DEVICE),
    ("the backward of indexing (index_put_)", "IndexBackward0",
     f"{NODE}IndexBackward0 aten::index_put_ aten::_index_put_impl_", TO_HOST),
    ("host tensors (.to(device))", "", COPY, TO_DEVICE),
    ("indices on the host", "", f"aten::index {COPY}", TO_DEVICE),
    (".item()", "", ITEM, TO_HOST),
    ("tensors as conditions (if x:)", "", f"aten::is_nonzero {ITEM}", TO_HOST),
    ("nonzero", "", "aten::nonzero", TO_HOST),
    ("x[mask]", "", "aten::index aten::nonzero", TO_HOST),
    ("masked_select", "", "aten::masked_select aten::index aten::nonzero", TO_HOST),
    ("unique", "", "aten::_unique2", TO_HOST),
    ("repeat_interleave", "", "aten::repeat_interleave", TO_HOST),
    (".cpu()", "", COPY, TO_HOST),
    ("printing tensors", "", f"torch/_tensor_str.py(698):_str {ITEM}", TO_HOST),
    ("GradScaler's check for infinities", "", ITEM, TO_HOST),
    ("cudaDeviceSynchronize()", "", "", TO_HOST),
]  # fmt: skip


def drawn(label: str, inside: str, copied: Symbol) -> tuple[str, dict[str, Symbol]]:
    """The drawing and the meaning of its letters."""
    thread = "pt_autograd_0" if NODE.strip() in inside else "main  "
    names = inside.replace(": ", ":\0").split()
    legend: dict[str, Symbol] = {
        "p": operator(CHECK if label.startswith("GradScaler") else "aten::mm"),
        "L": host("cudaMemcpyAsync", EventKind.LAUNCH),
        "q": copied,
    }
    lanes = []
    for letter, name in zip("abcdefg", names, strict=False):
        legend[letter] = (
            host(name.replace("(698):", "(698): "), EventKind.PYTHON)
            if ".py(" in name
            else operator(name.replace("\0", " "), launches=False)
        )
        lane = f"|.{letter * 4}.....|"
        lanes.append(f"    {thread} {lane}{lane[1:]}")
    drawing = LANES.format(thread=thread, inside="\n".join(lanes).strip())
    if not names:
        legend["S"] = host("cudaDeviceSynchronize", EventKind.SYNCHRONIZE)
        drawing = drawing.replace(".LSSSo", "..SSSo").replace("KKKKq.KKKK", "KKKKK.KKKK")
    return drawing, legend


@pytest.mark.parametrize(("label", "node", "inside", "copied"), CAUSED, ids=[c[0] for c in CAUSED])
def test_the_first_remedy_is_that_of_the_cause(
    label: str, node: str, inside: str, copied: Symbol
) -> None:
    drawing, legend = drawn(label, inside, copied)
    (wanted,) = [cause.changes for cause in CAUSES if cause.label == label]
    (finding,) = find(DeviceSynchronization, drawing, legend=legend) or ()
    assert finding.instance.endswith(f", by {label}")
    assert finding.remedies[0].change in wanted
    in_backward = find(BackwardSynchronization, drawing, legend=legend) or ()
    assert len(in_backward) == (1 if node else 0)
    for finding in in_backward:
        assert f"mostly in {node}" in finding.summary
        assert finding.remedies[0].change in wanted


OF_JAX = {
    "arrays as conditions (if x:)",
    "block_until_ready()",
    "float(), int() or .item()",
    "jax.device_get()",
    "printing arrays",
    "reading results (float(), jax.device_get(), np.asarray())",
}


def test_every_known_cause_of_pytorch_is_drawn() -> None:
    assert {label for label, *_ in CAUSED} == {cause.label for cause in CAUSES} - OF_JAX
