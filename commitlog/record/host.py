"""The hosts in a record, and the message id that is made of one."""

from __future__ import annotations

from typing import NamedTuple

from commitlog.errors import RecordError
from commitlog.record.record_layout import I32, I64, IPV4_BYTES, IPV6_BYTES, PORT_BYTES


class Host(NamedTuple):
    """An address as it is stored: 4 bytes (IPv4) or 16 (IPv6), and a port."""

    address: bytes
    port: int

    @classmethod
    def of(cls, text: str, port: int) -> Host:
        """Makes a host from an address as text. Raises RecordError if it is not IPv4 or IPv6."""
        import socket  # at a start it would cost as much as all records do, and most hosts stay bytes

        try:
            return cls(socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text), port)
        except OSError:
            raise RecordError(f"{text!r} is not an IPv4 or IPv6 address") from None

    @classmethod
    def decode(cls, data: bytes) -> Host:
        """Makes a host from the 8 or 20 bytes that `encode` makes."""
        return cls(data[:-PORT_BYTES], I32.unpack(data[-PORT_BYTES:])[0])

    @property
    def text(self) -> str:
        """The address as text, e.g. `127.0.0.1` or `2001:db8::1`."""
        import socket

        return socket.inet_ntop(socket.AF_INET if len(self.address) == IPV4_BYTES else socket.AF_INET6, self.address)

    def encode(self) -> bytes:
        """The host as it is stored: the address and an i32 port, 8 or 20 bytes.

        Raises RecordError for an address of another length, and for a port beyond 32 bits.
        """
        if len(self.address) not in (IPV4_BYTES, IPV6_BYTES) or not -0x80000000 <= self.port <= 0x7FFFFFFF:
            raise RecordError(f"a host is an address of 4 or 16 bytes and a port of 32 bits, not {self!r}")
        return self.address + I32.pack(self.port)


def message_id(store_host: bytes, physical_offset: int) -> str:
    """RocketMQ's offset message id: address, port and offset as upper-case hex.

    `store_host` is as it is stored. The id has 32 characters, or 56 with an IPv6 host.
    """
    return (store_host + I64.pack(physical_offset)).hex().upper()
