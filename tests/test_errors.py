from __future__ import annotations

import pytest

from tb_perfadvisor import errors
from tb_perfadvisor.errors import PerfAdvisorError, UsageError


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
    error_types = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(error_types) == 6
    assert all(issubclass(error, PerfAdvisorError) for error in error_types)
