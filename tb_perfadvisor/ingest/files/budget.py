"""Bounds what a reader keeps in memory, in proportion to what it has read.

A file can be made so that each of its bytes becomes a Python object: an opening bracket of JSON, an
instruction of a pickle, an empty protobuf message. Readers count what they keep as they go, and
stop long before memory runs out. The counts follow from the file alone, never from the machine.
"""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.units import format_bytes

FREE_BYTES: Final = 64 << 20
"""Kept whatever the size of the file, so that small files never reach a limit."""
BYTES_PER_BYTE: Final = 16
"""Kept for each inflated byte. Recorded files need less than 4: see `docs/damaged-files.md`."""
ITEM_BYTES: Final = 64
"""What an object, an entry of a container or a row of a table counts: about what it takes."""
_ITEMS_OF_OBJECT: Final = 3
"""An object of JSON, which becomes a dictionary."""


class Budget:
    """What the reader of one file may keep."""

    def __init__(self, where: str, read_bytes: int = 0) -> None:
        """Begin with nothing kept; `read_bytes` is the size of a file that is read in any order."""
        self._where = where
        self.read_bytes = read_bytes
        """Bytes that were read, after inflating. Readers from front to back add to it."""
        self.kept_bytes = 0

    @property
    def allowed_bytes(self) -> int:
        """How much may be kept of what was read so far."""
        return FREE_BYTES + BYTES_PER_BYTE * self.read_bytes

    def keep(self, items: int = 0, size_bytes: int = 0) -> None:
        """Count what is kept until the file is read.

        Items are objects, entries of containers or rows of tables. `size_bytes` counts bytes beyond
        those of the items, such as the texts.
        """
        self.kept_bytes += ITEM_BYTES * items + size_bytes
        self.expect()

    def has_room(self, items: int) -> bool:
        """Whether these may be kept, too."""
        return self.kept_bytes + ITEM_BYTES * items <= self.allowed_bytes

    def expect(self, items: int = 0) -> None:
        """Check that there is room for items that are freed again."""
        if not self.has_room(items):
            raise UnreadableProfileError(
                f"its first {format_bytes(self.read_bytes)} hold more than "
                f"{format_bytes(self.allowed_bytes)} of values, which no recording does.",
                where=self._where,
                hint="The file is damaged, or made to fill the memory: record it again.",
            )

    def expect_json(self, text: bytes | memoryview) -> None:
        """Check that there is room for the values of a JSON text, before it is decoded."""
        if self.is_large(len(text)):
            self.expect(json_items(text))

    def is_large(self, size_bytes: int) -> bool:
        """Whether the values of a text must be counted: those of recordings fit in any case."""
        return not self.has_room(_ITEMS_OF_OBJECT * size_bytes)


def json_items(text: bytes | memoryview) -> int:
    """The most items that a JSON text holds."""
    import numpy as np  # listing files must not wait for it

    # `bytes.count` takes ten times as long where there is much to count.
    characters = np.frombuffer(text, dtype=np.uint8)
    commas, lists, objects = (np.count_nonzero(characters == ord(each)) for each in ",[{")
    return int(commas + lists + _ITEMS_OF_OBJECT * objects)
