"""The two CRCs of a record: BODYCRC of its body, and the whole-record CRC in its last property.

The whole-record CRC is written as ten decimal digits. Tables of digits are cheaper than formatting
a number, so encoders and checks look the digits up.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from commitlog.record.record_layout import (
    CRC_DIGITS,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_END,
    CRC_PROPERTY_START,
    Buffer,
)

CRC_MASK = 0x7FFFFFFF
"""RocketMQ keeps these bits of a CRC-32."""
crc32 = zlib_ng.crc32

_DIGITS = slice(len(CRC_PROPERTY_START), len(CRC_PROPERTY_START) + CRC_DIGITS)


@lru_cache(maxsize=1)
def crc_property_parts() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The CRC property in three parts, each a table to look up.

    The first table has the name and the low three digits, by crc % 1,000. The second has the next
    three digits, by crc // 1,000 % 1,000. The third has the last four digits and 0x02, by
    crc // 1,000,000. Look-ups cost less than formatting and reversing ten digits, as long as the
    tables stay in a core's own cache beside the messages that pass through it.
    """
    digits = [(b"%03d" % number)[::-1] for number in range(1_000)]
    high = [(b"%04d" % number)[::-1] + CRC_PROPERTY_END for number in range(CRC_MASK // 1_000_000 + 1)]
    return [CRC_PROPERTY_START + three for three in digits], digits, high


@lru_cache(maxsize=1)
def five_digits() -> npt.NDArray[np.bytes_]:
    """The numbers from 0 to 99,999 as five digits each, the least significant first.

    A look-up gives one half of the CRC property's digits.
    """
    numbers = np.arange(100_000)
    powers = 10 ** np.arange(5)
    return (ord("0") + numbers[:, None] // powers % 10).astype(np.uint8).view("S5").ravel()


def stored_digits(properties: Buffer) -> bytes | None:
    """The ten digits of the CRC property that ends a property string, or None without one."""
    last = bytes(properties[-CRC_PROPERTY_BYTES:])
    if len(last) == CRC_PROPERTY_BYTES and last.startswith(CRC_PROPERTY_START) and last.endswith(CRC_PROPERTY_END):
        return last[_DIGITS]
    return None


def digits_of(crc: int) -> bytes:
    """A CRC as the ten digits that are stored, the least significant first."""
    return (b"%010d" % crc)[::-1]
