"""Every record of a log as a plain dictionary, with the field names of RocketMQ's own classes."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import CorruptRecord, MissingCodec, StoreDamaged
from commitlog.inspecting.log_root import LogRoot, find_roots
from commitlog.inspecting.verify import NOT_A_DIRECTORY
from commitlog.record.body_compression import plain_body
from commitlog.record.host import Host
from commitlog.record.record import Record, decode
from commitlog.record.record_layout import SysFlag
from commitlog.record.table import RecordTable


def dump_records(path: str | os.PathLike[str], channel: FileChannel = DISK) -> Iterator[dict[str, Any]]:
    """The records of a store of ours, one of its lanes, or a RocketMQ root, log after log.

    `body` is base64 of the stored bytes (None for no body). If they are compressed, `plainBody` is
    base64 of the unpacked bytes. Damaged ranges are passed over: `verify` names them. Of a running
    store it shows what is flushed. Raises StoreNotFound, and StoreDamaged where a lane is a file.
    """
    for root in find_roots(path, channel)[0]:
        if not root.path.is_dir():
            raise StoreDamaged(f"{root.path}: {NOT_A_DIRECTORY}")
        yield from _dump(root, channel)


def _dump(root: LogRoot, channel: FileChannel) -> Iterator[dict[str, Any]]:
    scan = root.scan(channel)
    for piece in scan.pieces(scan.segments.first):
        if not isinstance(piece, RecordTable):
            continue
        mapped = scan.segments.map(piece.buffer_start)
        for position, size in zip(piece.positions.tolist(), piece.sizes.tolist(), strict=True):
            if root.limit is not None and piece.buffer_start + position + size > root.limit:
                return
            record = decode(mapped[position : position + size], check_crc=False)
            yield record_to_dict(record)


def record_to_dict(record: Record) -> dict[str, Any]:
    """One record as values of JSON."""
    values: dict[str, Any] = {
        "physicOffset": record.physical_offset,
        "size": record.total_size,
        "storeSize": record.total_size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": _host_text(record.born_host),
        "bornPort": record.born_host.port,
        "storeTimestamp": record.store_timestamp,
        "storeHost": _host_text(record.store_host),
        "storePort": record.store_host.port,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "body": base64.b64encode(record.body).decode() if record.body else None,
    }
    if record.sys_flag & SysFlag.COMPRESSED:
        try:
            values["plainBody"] = base64.b64encode(plain_body(record)).decode()
        except (MissingCodec, CorruptRecord) as error:
            values["plainBody"], values["plainBodyError"] = None, str(error)
    values["properties"] = dict(sorted(record.properties.items()))
    values["msgId"] = record.message_id
    return values


def _host_text(host: Host) -> str:
    """The address as Java writes it: an IPv6 one with all eight groups."""
    if len(host.address) == 4:
        return socket.inet_ntoa(host.address)
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", host.address))
