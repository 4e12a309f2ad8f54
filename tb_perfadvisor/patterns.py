"""Regular expressions that are compiled when they are first used.

The package has hundreds, most of which a profile does not need. To compile all of them takes a
tenth of the time of a small analysis.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class Regex:
    """Takes the attributes of a compiled expression when it is first asked for one."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, value)
        return value


def regex(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but only the methods of the result are there, and not its type."""
    return cast("re.Pattern[AnyStr]", Regex(pattern, flags))
