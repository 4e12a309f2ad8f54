"""Which calls end steps, by drawn sequences of calls."""

from __future__ import annotations

from tb_perfadvisor.instrument.step_hooks import Rank, StepSources

CALLS = {
    "b": (Rank.BATCH, "fit"),
    "o": (Rank.OPTIMIZER, "first"),
    "p": (Rank.OPTIMIZER, "second"),
    "g": (Rank.GRADIENT, "backward"),
    "t": (Rank.TRAINING_FUNCTION, "train"),
    "m": (Rank.CALL, "model"),
    "n": (Rank.CALL, "other model"),
}


def steps(calls: str) -> str:
    """The calls that ended steps, `|` where a better source was found, `>` where another was."""
    found: list[str] = []
    sources = StepSources(
        lambda: found.append(now), lambda rank: found.append("|"), lambda: found.append(">")
    )
    for now in calls:
        sources.ended(*CALLS[now])
    return "".join(found)


def test_an_optimizer_ends_steps_and_gradients_are_parts_of_them() -> None:
    # The gradients of the first step come first; from then on, only the optimizer counts.
    assert steps("gogogo") == "|g|ooo"


def test_a_second_optimizer_belongs_to_the_step() -> None:
    assert steps("opopop") == "|ooo"


def test_the_program_may_move_on_to_another_optimizer() -> None:
    # Ten in a row: the tenth is the first that counts.
    assert steps("ooo" + "p" * 12) == "|ooo" + ">ppp"
    # Where it goes back and forth, it moves on once.
    assert steps("o" + "p" * 11 + "o" * 11 + "p" * 11) == "|o" + ">pp" + "oo" + "pp"


def test_an_evaluation_before_training_is_no_step_later() -> None:
    assert steps("mmmm" + "gogo" + "mm" + "go") == "|mmm|g|ooo"


def test_one_call_of_a_model_is_no_loop() -> None:
    assert steps("m") == ""
    assert steps("mn") == ""
    assert steps("mm") == "|m"
    # A batch of `predict` calls a compiled function, too: one of the two ends steps.
    assert steps("mnmnmn") == "|mm"


def test_a_function_that_trains_is_better_than_one_that_does_not() -> None:
    assert steps("mmm" + "tt" + "mtm") == "|mm|tt"


def test_batches_of_fit_are_best() -> None:
    assert steps("ttbtbtb") == "|t|bbb"


def test_models_that_are_made_again_and_again_all_count() -> None:
    # A new one takes three batches; none of the first twenty others makes ten in a row.
    found: list[int] = []
    begins: list[int] = []
    sources = StepSources(
        lambda: found.append(now), lambda rank: begins.append(now), lambda: found.append(-1)
    )
    for now in range(60):
        sources.ended(Rank.BATCH, ("train_on_batch", now // 3))
    assert found[:3] == [0, 1, 2]
    # Twenty calls lie between the third step and the next: what was recorded was no step.
    assert found[3:] == list(range(23, 60))
    assert begins == [0, 22]


def test_two_optimizers_that_take_turns_are_one_step_however_long() -> None:
    assert steps("op" * 50) == "|" + "o" * 50


def test_after_a_rest_calls_of_a_model_end_steps() -> None:
    found: list[str] = []
    sources = StepSources(
        lambda: found.append("s"),
        lambda rank: found.append(rank.name),
        lambda: found.append("next"),
    )
    for now in "ooommm":
        sources.ended(*CALLS[now])
    assert found == ["OPTIMIZER", "s", "s", "s"]
    sources.forget()
    for now in "mmmo":
        sources.ended(*CALLS[now])
    assert found[4:] == ["CALL", "s", "s", "OPTIMIZER", "s"]
