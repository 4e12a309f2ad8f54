"""Work that a program could do without, by what the tensors of a few steps hold."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.units import format_share


class RepeatedResults(ExaminedOperators):
    """The program computes again what it has computed before, from the same inputs.

    What it finds
    -------------
    In a PyTorch program, operators of the forward pass that depend only on constants, inputs that
    stay, and parameters and buffers that do not change: masks, a weight that is unpacked in each
    call, a frozen layer of the same data. And what a round of the loop computes twice from the same
    tensors: a second forward pass for a metric. And rows that the step before has computed, of a
    sequence that grows by one, without gradients. In a TensorFlow program, calls of functions and
    models that get the same tensors as before, such as an encoder that runs for each token.

    Why it matters
    --------------
    The same inputs give the same result. Computed once and kept, it costs nothing.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each tensor is followed back to where it comes from.
    An input stays if its memory and its content do. Parameters that are trained change: what
    depends on them is the same only between two updates. A checksum of the results makes sure. Of
    TensorFlow, whose tensors do not change, results of calls are compared five times. Random
    numbers, views, and what checkpointing computes again are left out, and so are programs that
    repeat all of their work, as benchmarks do. Expected is the operators' share of the time of all
    operators, with what the last backward pass does once more for a second forward pass. Low is
    70 % of it, and high is a third more.

    When to ignore
    --------------
    When the result does not fit in memory, when the input only stands for data that change, or when
    a second pass is to update the statistics of batch normalization.

    How to verify
    -------------
    The operators are gone from the step, and the results are the same.

    References:
    ----------
    Aho, Lam, Sethi and Ullman, "Compilers: Principles, Techniques, and Tools", on moving code out
    of loops and on common subexpressions.
    """

    id = "repeated-results"
    title = "Compute once what does not change"
    kinds = ("same in every step", "same twice", "same rows")
    look = "repeated results"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.EXAMINED_STEPS)
    changes = ("computed-once", "rows-kept")
    basis = "measured"

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All of it: the result is there already."""
        return 0.7, 1.0, 1.3

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """Rows can be kept while others are added."""
        return self.changes[1:] if costliest.kind == "same rows" else self.changes[:1]

    def describe(self, observed: Observed, cost: str) -> str:
        why = {
            "same in every step": "depends on nothing that changes from step to step",
            "same twice": "gets the same inputs twice in a step",
            "same rows": "computes all rows of a growing input anew in each step, for one more",
        }[observed.kind]
        return (
            f"{cost} goes into results that are there already. {observed.operator} in"
            f" {place_of_observed(observed)} {why}."
        )


class PaddedSequences(ExaminedOperators):
    """A good part of each batch of sequences is padding.

    What it finds
    -------------
    In a PyTorch program, batches of tokens of which most sequences end in the same token
    again and again, for a tenth of all places or more.

    Why it matters
    --------------
    Layers compute padding like any other token, and attention pairs it with all others.

    How it is measured
    ------------------
    The part of padding is counted in the tokens of steps that `perfadvisor run` looked at. Of the
    operators on sequences of this length, batches of similar lengths would save this part, which is
    expected, and attention its square. Low is 30 % of it, which is what cutting each batch to
    its longest sequence saves if lengths vary a lot.

    When to ignore
    --------------
    When sequences end in the same token because their content does.

    How to verify
    -------------
    The sizes of the batches follow the lengths of the sequences, and the step is shorter.

    References:
    ----------
    Vaswani et al., "Attention Is All You Need", section 5.1, on batches of similar length;
    PyTorch documentation, `torch.nn.utils.rnn.pad_sequence`.
    """

    id = "padded-sequences"
    title = "Cut the padding off the batches"
    kinds = ("padding",)
    look = "padding"
    changes = ("similar-lengths",)
    amount = Column("padding", "Padding", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """The padding's part; of attention its square."""
        padding = observed.amount
        return 0.3 * padding, padding, 1 - (1 - padding) ** 2

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into operators on sequences of which {format_share(observed.amount)} is"
            f" padding: {observed.shapes}, made or handed to the model in"
            f" {place_of_observed(observed)}."
        )

    def named(self, observed: Observed) -> str:
        """Where the padding comes from: the look-up only meets it first."""
        return place_of_observed(observed)


_SLOWER: Final = (20, 8, 0)
"""What a sparse product takes for an element that is not zero, in times of a dense one: at most,
as expected, and at least. With PyTorch 2.13 on one core of an AMD EPYC with AVX2, square matrices
of 2,048 to 4,096 rows with 90 to 99.9 % of zeros, multiplied by 16 to 256 columns, took 3 to 15
times as long in compressed rows, and 9 to 49 times in coordinates."""
_SLOWER_ON_GPU: Final = (150, 50, 5)
"""The same with a GPU, whose matrix units take dense data only."""


class MostlyZeroProducts(ExaminedOperators):
    """A dense product multiplies data of which nearly all elements are zero.

    What it finds
    -------------
    In a PyTorch program, matrix products in which 95 % or more of the elements of an
    input are zero: adjacency matrices, one-hot vectors, counts of words. Activations and masks that
    the step computes are left out.

    Why it matters
    --------------
    A dense product takes as long for a zero as for any other number. Stored sparsely, a matrix with
    1 % of its elements costs a tenth or less; a product with one-hot vectors is a look-up.

    How it is measured
    ------------------
    The share of zeros is that of 4,096 elements drawn at random in steps that `perfadvisor run`
    looked at. A sparse product takes eight times as long for each element that is left, which is
    expected; at most 20 times, and at least nothing, with what is between the products. With a GPU,
    it takes 50 times as long, at most 150 times, and at least 5 times. Products
    of the backward pass with the same matrix count as well.

    When to ignore
    --------------
    When the elements that are not zero change too often to convert them.

    How to verify
    -------------
    The dense product is gone from the profile, and its place takes a fraction of its time.

    References:
    ----------
    PyTorch documentation, `torch.sparse` and `torch.nn.Embedding`; Kipf and Welling,
    "Semi-Supervised Classification with Graph Convolutional Networks", section 6.2.
    """

    id = "mostly-zero-products"
    title = "Do not multiply by zeros"
    kinds = ("mostly zero",)
    look = "zeros"
    changes = ("sparse-matrix", "rows-gathered")
    amount = Column("zeros", "Zeros", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All but what sparse products take."""
        slower = _SLOWER if signals.device.is_host_only else _SLOWER_ON_GPU
        low, expected, high = (max(1 - times * (1 - observed.amount), 0.0) for times in slower)
        return 0.8 * low, expected, 1.1 * high

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into dense products with data of which at least"
            f" {format_share(observed.amount)} is zero: {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)}. Store that matrix sparsely, or look up rows."
        )


class DroppedGradients(ExaminedOperators):
    """The backward pass computes gradients that are cleared, or kept, without an update.

    What it finds
    -------------
    In a PyTorch program, operators of the backward pass that lead only to gradients of
    parameters which are not updated before the gradient begins anew: of a generator while its
    discriminator learns, of a part that is meant to be frozen, of a teacher.

    Why it matters
    --------------
    The backward pass takes about twice the forward pass. Where nothing uses its results, a
    `detach()`, `no_grad()` or `requires_grad_(False)` saves it, and the memory of activations.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each gradient is followed from its accumulation to
    the next update, and each node of the backward pass to the gradients that it leads to. Expected
    is the time of the nodes that lead to none that is used, and half of those that make a gradient
    of a weight besides one of their input. Low is 70 % of it.

    When to ignore
    --------------
    When the gradients are read by something else than an optimizer.

    How to verify
    -------------
    The backward pass has fewer nodes, and losses are the same.

    References:
    ----------
    PyTorch documentation, "Autograd mechanics", on disabling gradient computation.
    """

    id = "dropped-gradients"
    title = "Stop computing gradients that nothing uses"
    kinds = ("dropped gradients",)
    look = "dropped gradients"
    changes = ("no-unused-gradients",)
    basis = "measured"

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All of it."""
        return 0.7, 1.0, 1.25

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into gradients that no update uses, mostly of what"
            f" {place_of_observed(observed)} computes. Detach that result where it is only an"
            " input, or freeze the parameters."
        )


class UnreadResults(ExaminedOperators):
    """A layer computes more than the program needs.

    What it finds
    -------------
    In a PyTorch program that trains, operators whose result is freed without being read, with what
    only they read: a head that another mode needs, weights of attention that a layer returns as
    well. In any PyTorch program, products, pointwise operators and losses of which 60 % or less
    of the result is needed: the rest is not read, is masked, or belongs to targets that the loss
    ignores.

    Why it matters
    --------------
    Logits of all positions where the last one is used, or where a sixth has a label, cost as much
    as if they were needed. Select first, then compute.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each result is followed to the operators that read
    it, to how much of it, and through those that keep rows apart. NumPy takes no tensor with a
    gradient, so what has one, and is freed unread, was not needed. Expected is the time of the part
    that is not needed, forward and backward, without what calling the operators takes; low is 70 %
    of it. High is half as much again, for the layers before.

    When to ignore
    --------------
    When something that is no operator reads the rest, such as NumPy.

    How to verify
    -------------
    The operator's input has only the rows that count.

    References:
    ----------
    PyTorch documentation, `torch.nn.CrossEntropyLoss`, on `ignore_index`.
    """

    id = "unread-results"
    title = "Compute only what is needed"
    kinds = ("unused",)
    look = "unread results"
    changes = ("selected-first", "unread-left-out")
    amount = Column("needed", "Needed", "share")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What is not needed."""
        unread = 1 - observed.amount
        return 0.7 * unread, unread, 1.5 * unread

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """What nobody reads goes."""
        return self.changes[:1] if costliest.amount else self.changes[1:]

    def describe(self, observed: Observed, cost: str) -> str:
        needed = f"only {format_share(observed.amount)} is needed" if observed.amount else "none is"
        return (
            f"{cost} goes into {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)} and others, of whose results {needed}."
        )


class RepeatedPageFaults(ExaminedOperators):
    """The allocator gives memory back to the system, and each step takes it again, page by page.

    What it finds
    -------------
    In a PyTorch program on the CPU, with glibc, operators whose results lie in memory that the
    system clears for each of them, in every step.

    Why it matters
    --------------
    The system clears each page when it is first touched, which can take several times as long as
    the operator. glibc's allocator gives large blocks back, unless it is told to keep them.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, new pages are counted for each operator, but not more
    than its results have. The step with the fewest counts, without the first, and it counts no more
    new pages than the steps before that nobody looked at. Expected is their number times what it
    takes to touch a new page on that machine, and to give it back. Low is 60 % of it: memory that
    is kept has to be read into caches, too. High is 30 % more: small results then stay in caches.

    When to ignore
    --------------
    When the machine has no memory to spare: the process keeps what it once used.

    How to verify
    -------------
    The same script takes less system time, as `time` shows it.

    References:
    ----------
    `mallopt(3)`, on `M_MMAP_MAX` and `M_TRIM_THRESHOLD`; PyTorch, "Performance Tuning Guide", on
    switching the memory allocator.
    """

    id = "repeated-page-faults"
    title = "Keep freed memory for the next results"
    kinds = ("page faults",)
    look = "page faults"
    needs = (*ExaminedOperators.needs, Need.CPU_PROGRAM)
    changes = ("kept-memory",)
    amount = Column("faults", "New pages per step", "count")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """About all of it."""
        return 0.6, 1.0, 1.3

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into new pages of memory, which each step gives back and takes again."
            f" Most are for results of {observed.operator} in {place_of_observed(observed)}."
        )
