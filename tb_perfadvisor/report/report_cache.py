"""Results kept between starts of the command: files that have not changed are not read again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.result_cache import ResultCache, capture_key
from tb_perfadvisor.ingest.discovery import Capture
from tb_perfadvisor.ingest.files.bounded_directory import default_directory
from tb_perfadvisor.report import model
from tb_perfadvisor.trace import Note

# A file that could not be read may be readable next time without having changed.
_NOT_KEPT = frozenset({"unsupported-file"})

T = TypeVar("T", bound=msgspec.Struct)


class Kept(Generic[T]):
    """Results of one type, of captures under some settings.

    Args:
        cache: Where they are.
        kind: Their type.
        config: The settings.
    """

    def __init__(self, cache: ResultCache, kind: type[T], config: Config) -> None:
        """Look at nothing yet."""
        self._cache = cache
        self._kind = kind
        self._name = f"{kind.__name__.lower()}.json"
        self._settings = f"{kind.__name__} {msgspec.json.encode(config, enc_hook=dict).decode()}"

    def read(self, root: str, capture: Capture) -> T | None:
        """The result of a capture, if its files and everything else are as they were."""
        content = self._cache.read(self._key(root, capture), self._name)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=self._kind)
        except msgspec.MsgspecError:
            return None

    def has(self, root: str, capture: Capture) -> bool:
        """Whether there is a result of a capture, readable or not."""
        return self._cache.has(self._key(root, capture))

    def keep(
        self, root: str, capture: Capture, result: T, notes: Iterable[Note | model.NoteInfo]
    ) -> None:
        """Keep a result; where that fails, for a full disk say, it is made again next time.

        Args:
            root: What the capture's paths are relative to.
            capture: The capture.
            result: Its result.
            notes: What its report says of the profile.
        """
        if any(note.id in _NOT_KEPT for note in notes):
            return
        with suppress(OSError):
            staged = self._cache.stage()
            (staged / self._name).write_bytes(msgspec.json.encode(result))
            self._cache.commit(staged, self._key(root, capture))

    def _key(self, root: str, capture: Capture) -> str:
        return capture_key(root, capture, self._settings)


def open_kept(kind: type[T], config: Config) -> Kept[T] | None:
    """The results in the user's cache directory; None where it cannot be written."""
    try:
        return Kept(ResultCache(default_directory()), kind, config)
    except OSError:
        return None
