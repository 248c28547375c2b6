"""Event files as TensorBoard reads them, written record by record.

A record is its length, its bytes, and a checksum of either (tensorflow/core/lib/io/record_writer.h); the bytes are an
`Event` message (tensorflow/core/util/event.proto). TensorBoard's own writer takes longer to import than a short run to
train, and puts a thread beside it.
"""

import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from archetype.io import atomic

POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed
STRING, START = 7, 1  # DataType.DT_STRING, SessionLog.START


class EventFile:
    """An event file that grows.

    Args:
        file: to create; its name holds "tfevents".
        seconds: when it was begun, since the epoch.
        first_step: events of this and later steps that stand in earlier files of the folder are forgotten.
    """

    def __init__(self, file: Path, seconds: float, first_step: int = 0) -> None:
        self.file = file
        atomic.make_folder(file.parent)
        header = [_message(seconds, 0, _bytes(3, b"brain.Event:2"))]
        if first_step:
            header.append(_message(seconds, first_step, _bytes(7, _integer(1, START))))
        self._append(header)

    def write(self, events: Iterable[tuple[float, int, dict[str, float | str]]]) -> None:
        """Append events.

        Args:
            events: seconds since the epoch, the step, and numbers and texts by their tags.
        """
        messages = []
        for seconds, step, values in events:
            summary = b"".join(_bytes(1, _value(tag, value)) for tag, value in values.items())
            messages.append(_message(seconds, step, _bytes(5, summary)))
        self._append(messages)

    def _append(self, messages: list[bytes]) -> None:
        records = b""
        for message in messages:
            length = struct.pack("<Q", len(message))
            records += length + _checksum(length) + message + _checksum(message)
        atomic.append_bytes(self.file, records)


def _value(tag: str, value: float | str) -> bytes:
    """A `Summary.Value`: a number, or a text for TensorBoard's plugin of that name."""
    name = _bytes(1, tag.encode())
    if not isinstance(value, str):
        return name + b"\x15" + struct.pack("<f", value)  # field 2, four bytes
    plugin = _bytes(9, _bytes(1, _bytes(1, b"text")))
    shape = _bytes(2, _bytes(2, _integer(1, 1)))
    return name + plugin + _bytes(8, _integer(1, STRING) + shape + _bytes(8, value.encode()))


def _message(seconds: float, step: int, content: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", seconds) + _integer(2, step) + content  # field 1, eight bytes


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _integer(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as the format asks."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table
