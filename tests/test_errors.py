from __future__ import annotations

import pickle

import pytest

from tb_perfadvisor import errors
from tb_perfadvisor.errors import (
    OutOfMemoryError,
    PerfAdvisorError,
    UnexpectedError,
    UsageError,
    contained,
)


@pytest.mark.parametrize(
    ("where", "hint", "line"),
    [
        ("", "", "is no profile."),
        ("a.json", "", "a.json: is no profile."),
        ("", "Record one.", "is no profile. Record one."),
        ("a.json", "Record one.", "a.json: is no profile. Record one."),
    ],
)
def test_the_line_has_place_message_and_hint(where: str, hint: str, line: str) -> None:
    assert str(PerfAdvisorError("is no profile.", where=where, hint=hint)) == line


def test_parts_are_separate_attributes() -> None:
    error = UsageError("no rule.", where="config", hint="See the list.")
    assert (error.message, error.where, error.hint) == ("no rule.", "config", "See the list.")


def test_all_errors_share_one_base() -> None:
    error_types = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(error_types) == 8
    assert all(issubclass(error, PerfAdvisorError) for error in error_types)


class NeedsTwoError(Exception):
    """Cannot be unpickled: its arguments are not those of `__init__`."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def broken(depth: int) -> None:
    if depth:
        broken(depth - 1)
    raise NeedsTwoError("a secret", "b")


def caught(depth: int) -> PerfAdvisorError:
    try:
        broken(depth)
    except Exception as error:
        return contained(error, "run/a.json")
    raise AssertionError


def test_a_bug_is_named_by_its_type_and_an_id() -> None:
    bug = caught(5)
    assert isinstance(bug, UnexpectedError)
    assert str(bug) == (
        f"run/a.json: it could not be analyzed because of a bug (NeedsTwoError, {bug.id}). "
        "Please report it with this id."
    )
    assert "a secret" in bug.details
    assert "Traceback" in bug.details


def test_the_id_is_of_the_place_in_the_code() -> None:
    ids = {error.id for error in (caught(5), caught(9)) if isinstance(error, UnexpectedError)}
    assert len(ids) == 1
    with pytest.raises(KeyError) as raised:
        {}["key"]
    assert UnexpectedError(raised.value).id not in ids


def test_a_bug_comes_back_from_another_process() -> None:
    bug = caught(0)
    copy = pickle.loads(pickle.dumps(bug))
    assert isinstance(copy, UnexpectedError)
    assert vars(copy) == vars(bug)
    assert str(copy) == str(bug)


def test_errors_for_the_user_and_lack_of_memory_are_no_bugs() -> None:
    error = UsageError("no rule.")
    assert contained(error, "a") is error
    assert isinstance(contained(MemoryError(), "a"), OutOfMemoryError)
