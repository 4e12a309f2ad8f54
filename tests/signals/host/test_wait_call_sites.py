from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.waits import (
    WaitCallSite,
    wait_call_sites,
    wait_count,
)
from tb_perfadvisor.testing import TraceBuilder, run_of, us
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import CopyDirection, EventKind

ITEM = ("aten::is_nonzero", "aten::item", "aten::_local_scalar_dense")
CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"


class Program:
    """A loop that waits in calls of `.item()`, as in a recorded trace (sam-fast)."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.at = 0
        self.copies = 0

    def item(self, operators: tuple[str, ...] = ITEM) -> Program:
        """12 µs: a copy takes 6 in the call, the synchronization after it 3."""
        at = self.at
        for depth, name in enumerate(operators):
            self.builder.operator(name, us(at), us(at + 12 - depth), launches=False)
        key = f"copy {self.copies}"
        self.builder.launch(us(at), us(at + 6), name="cudaMemcpyAsync", key=key)
        self.builder.copy(
            CopyDirection.DEVICE_TO_HOST, us(at + 3), us(at + 5), pageable=1, launched_by=key
        )
        self.builder.synchronize(us(at + 6), us(at + 9))
        self.copies += 1
        self.at += 12
        return self

    def kernel(self) -> Program:
        """8 µs of an operator, whose kernel starts after 6 and takes 2."""
        key = f"kernel {self.copies}"
        self.builder.operator("aten::mul", us(self.at), us(self.at + 8), launches=False)
        self.builder.launch(us(self.at + 4), us(self.at + 6), key=key)
        self.builder.kernel("mul", us(self.at + 6), us(self.at + 8), launched_by=key)
        self.copies += 1
        self.at += 8
        return self

    def operator(self, name: str) -> Program:
        """5 µs."""
        self.builder.operator(name, us(self.at), us(self.at + 5), launches=False)
        self.at += 5
        return self

    def sites(self) -> tuple[WaitCallSite, ...]:
        builder = self.builder.step(0, 0, us(self.at))
        return wait_call_sites(Signals(run_of(builder.build())))


def test_a_copy_and_its_synchronization_are_one_wait() -> None:
    (site,) = Program().kernel().item().kernel().item().kernel().sites()
    assert (site.count, len(site.rows)) == (2, 4)
    assert wait_count((site,)) == 2
    assert site.calls == ("cudaMemcpyAsync", "cudaStreamSynchronize")
    assert site.operators == tuple(reversed(ITEM))
    assert site.copies == CopyDirection.DEVICE_TO_HOST
    assert (site.node, site.forward, site.module, site.line) == ("", "", None, None)
    # Twice 6 + 3 in the calls. Idle in one: 3 before the copy, 4 from its end at 5 to the return
    # of the synchronization at 9, and from there as long as that took: 3 (the next copy of the
    # device, 3 + 3 + 6 later, starts at 18).
    assert site.duration_ns == us(18)
    assert site.induced_ns == us(2 * (3 + 4 + 3))


def test_calling_operators_distinguish_call_sites() -> None:
    sites = Program().item().kernel().item(ITEM[1:]).kernel().sites()
    assert {site.operators[-1] for site in sites} == {"aten::is_nonzero", "aten::item"}
    assert [site.count for site in sites] == [1, 1]


def test_value_read_after_the_gradient_check() -> None:
    program = Program().operator(CHECK).item(ITEM[1:]).kernel().item(ITEM[1:]).kernel()
    checked = [(site.checks_gradients, site.count) for site in program.sites()]
    assert sorted(checked) == [(False, 1), (True, 1)]


def test_pytorch_frame_gives_the_purpose() -> None:
    program = Program().item(ITEM[1:]).kernel()
    frame = host("torch/_tensor_str.py(698): _str", EventKind.PYTHON)
    program.builder.add(frame, 0, us(12.5), thread="main")
    (site,) = program.sites()
    assert site.frame == "torch/_tensor_str.py(698): _str"


def test_no_waits_give_no_call_sites() -> None:
    assert Program().kernel().sites() == ()
