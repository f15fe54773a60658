"""Records without their times: what is left is the same whenever they were written."""

from __future__ import annotations

from commitlog.record.record_layout import CRC_DIGITS, I32, I64, LEAD, STORE_TIMESTAMP_AT

assert LEAD.fields is not None
_BORN_TIMESTAMP_AT = LEAD.fields["born_timestamp"][1]


def without_times(log: bytes, has_crc: bool) -> bytes:
    """The records of a log with zeros for their timestamps, and for the CRC that covers them.

    Their hosts are of IPv4. The log ends with its last byte, or where zeros follow.
    """
    records, at = bytearray(log), 0
    while at < len(records) and (size := I32.unpack_from(records, at)[0]):
        times = slice(at + _BORN_TIMESTAMP_AT, at + STORE_TIMESTAMP_AT + I64.size)
        records[times] = bytes(times.stop - times.start)
        if has_crc:
            digits = slice(at + size - 1 - CRC_DIGITS, at + size - 1)
            records[digits] = bytes(CRC_DIGITS)
        at += size
    return bytes(records[:at])
