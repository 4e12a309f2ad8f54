from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tb_perfadvisor.instrument.examination.gathered_graphs import gathered_products

pytestmark = pytest.mark.frameworks

ITEMS, WIDTH, BATCH, CANDIDATES = 600, 8, 4, 10


def names(score: Callable[[Any, Any, Any], Any], candidates: int = CANDIDATES) -> dict[str, float]:
    """The operators that are found in a training step with these scores, and what is read."""
    tf = pytest.importorskip("tensorflow", reason="makes graphs of TensorFlow")
    table = tf.Variable(tf.ones((ITEMS, WIDTH)))

    @tf.function
    def step(x: Any, chosen: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(score(x, table, chosen))
        gradient = tape.gradient(loss, table)
        table.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    step(tf.ones((BATCH, WIDTH)), tf.zeros((BATCH, candidates), tf.int32))
    return {each.operator: each.amount for each in gathered_products(step)}


def test_scores_that_only_a_gather_reads() -> None:
    import tensorflow as tf

    def score(x: Any, table: Any, chosen: Any) -> Any:
        scores = 2.0 * tf.matmul(x, table, transpose_b=True)
        return tf.gather(scores, chosen, batch_dims=1)

    found = names(score)
    products = {"MatMul", "gradient_tape/MatMul/MatMul"}
    assert products | {"AssignSubVariableOp", "gradient_tape/UnsortedSegmentSum"} <= found.keys()
    assert set(found.values()) == {CANDIDATES / ITEMS}


def test_scores_that_a_softmax_reads_as_well() -> None:
    import tensorflow as tf

    def score(x: Any, table: Any, chosen: Any) -> Any:
        scores = tf.matmul(x, table, transpose_b=True)
        return tf.gather(tf.nn.log_softmax(scores), chosen, batch_dims=1)

    assert names(score) == {}


def test_vectors_that_are_gathered_first() -> None:
    import tensorflow as tf

    def score(x: Any, table: Any, chosen: Any) -> Any:
        return tf.matmul(tf.gather(table, chosen), x[:, :, None])[:, :, 0]

    assert names(score) == {}


def test_gathered_rows_leave_the_update_of_the_weights() -> None:
    import tensorflow as tf

    def score(x: Any, table: Any, chosen: Any) -> Any:
        return tf.gather(tf.matmul(x, table, transpose_b=True), chosen[0, :1])

    found = names(score)
    assert "MatMul" in found
    assert "AssignSubVariableOp" not in found
