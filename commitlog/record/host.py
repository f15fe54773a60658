"""The hosts in a record, and the message id that is made of one."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from commitlog.errors import RecordError

_i32 = struct.Struct(">i")
_i64 = struct.Struct(">q")


class Host(NamedTuple):
    """An address as it is stored: 4 bytes (IPv4) or 16 (IPv6), and a port."""

    address: bytes
    port: int

    @classmethod
    def of(cls, text: str, port: int) -> Host:
        """From an address as text. Raises RecordError if it is no IPv4 or IPv6 address."""
        try:
            return cls(socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text), port)
        except OSError:
            raise RecordError(f"{text!r} is no IPv4 or IPv6 address") from None

    @property
    def text(self) -> str:
        """The address as text, e.g. `127.0.0.1` or `2001:db8::1`."""
        return socket.inet_ntop(socket.AF_INET if len(self.address) == 4 else socket.AF_INET6, self.address)

    def encode(self) -> bytes:
        """Address and i32 port: 8 or 20 bytes. Raises RecordError for other lengths and for larger
        ports.
        """
        if len(self.address) not in (4, 16) or not -0x80000000 <= self.port <= 0x7FFFFFFF:
            raise RecordError(f"a host is an address of 4 or 16 bytes and a port of 32 bits, not {self!r}")
        return self.address + _i32.pack(self.port)


def message_id(store_host: Host, physical_offset: int) -> str:
    """RocketMQ's offset message id: upper-case hex of address, port, offset; 32 characters, 56 for
    IPv6.
    """
    return (store_host.encode() + _i64.pack(physical_offset)).hex().upper()
