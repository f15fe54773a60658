"""One record: the golden vector, the forms, the limits, and every way to be cut or wrong."""

from __future__ import annotations

import struct
from itertools import product
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import CorruptRecord, IllegalTopic, MessageTooLarge, PropertiesTooLarge, RecordError
from commitlog.record.host import Host, message_id
from commitlog.record.properties import encode_properties
from commitlog.record.record import RecordEncoder, decode, encode_blank
from commitlog.record.record_layout import BLANK_BYTES, MAGIC_V1, MAGIC_V2, Transaction

GOLDEN = bytes.fromhex(
    "00000068daa320a73610a6860000000100000000000000000000000200000000000000030000000000000000000003e87f000001"
    "0000000500000000000007d07f00000100002a9f0000000000000000000000000000000568656c6c6f0154000754414753014102"
)
FIELDS = {  # of small_record: position and type
    "total": (0, ">i"),
    "magic": (4, ">i"),
    "queue id": (12, ">i"),
    "physical offset": (28, ">q"),
    "body length": (84, ">i"),
    "topic length": (92, ">b"),
    "properties length": (99, ">h"),
}
HOSTILE = [
    (name, value)
    for name, (_, code) in FIELDS.items()
    for value in (0, 1, -1, 127, -128, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 1_000_000)
    if abs(value) < 1 << 8 * struct.calcsize(code) - 1
]
V4, V6 = Host.of("127.0.0.1", 10911), Host.of("2001:db8::7", 10912)


def encoder(append_crc: bool = True, born: Host = V4, store: Host = V4, queue_id: int = 3) -> RecordEncoder:
    return RecordEncoder(queue_id, born, store, append_crc)


def small_record(append_crc: bool = True, body: bytes = b"body") -> bytes:
    return encoder(append_crc).encode(b"orders", body, b"TAGS\x01a\x02", 5, 1000, 11, 12)


class TestGolden:
    """The vector of the format's description."""

    def test_encoded(self) -> None:
        """Byte for byte."""
        made = RecordEncoder(1, Host.of("127.0.0.1", 5), V4, append_crc=False)
        assert made.encode(b"T", b"hello", encode_properties(None, "A", None), 2, 3, 1000, 2000) == GOLDEN

    def test_decoded(self) -> None:
        """Field for field."""
        record = decode(GOLDEN, physical_offset=3, queue_id=1)
        assert (record.total_size, record.magic, record.body_crc) == (104, MAGIC_V1, 0x3610A686)
        assert (record.queue_id, record.flag, record.queue_offset, record.physical_offset) == (1, 0, 2, 3)
        assert (record.sys_flag, record.reconsume_times, record.prepared_transaction_offset) == (0, 0, 0)
        assert (record.born_timestamp, record.store_timestamp) == (1000, 2000)
        assert (record.born_host.text, record.born_host.port, record.store_host.port) == ("127.0.0.1", 5, 10911)
        assert (record.body, record.topic, record.properties) == (b"hello", "T", {"TAGS": "A"})
        assert record.message_id == "7F00000100002A9F0000000000000003"
        assert (record.tags_code, record.transaction, record.has_crc) == (65, Transaction.NOT, False)


class TestForms:
    """Every form a record can have comes back as it was sent."""

    @pytest.mark.parametrize(
        ("born", "store", "topic_bytes", "append_crc", "properties"),
        list(product((V4, V6), (V4, V6), (1, 127, 128, 255), (True, False), (b"", b"K\x01V\x02"))),
    )
    def test_comes_back(self, born: Host, store: Host, topic_bytes: int, append_crc: bool, properties: bytes) -> None:
        """V1 and V2, IPv4 and IPv6, with and without properties and whole-record CRC."""
        topic = b"t" * topic_bytes
        made = encoder(append_crc, born, store)
        data = made.encode(topic, b"\0body", properties, 1, 2, -3, 4, flag=-5, reconsume_times=6)
        record = decode(data, physical_offset=2, queue_id=3, require_crc=append_crc)
        assert record.magic == (MAGIC_V1 if topic_bytes <= 127 else MAGIC_V2)
        assert (record.born_host, record.store_host) == (born, store)
        assert (record.topic.encode(), record.body, record.flag) == (topic, b"\0body", -5)
        assert (record.born_timestamp, record.store_timestamp, record.reconsume_times) == (-3, 4, 6)
        assert record.has_crc == append_crc
        assert record.raw_properties[: len(properties)] == properties
        assert len(data) == made.size(topic, b"\0body", properties)

    @pytest.mark.parametrize("kind", list(Transaction))
    def test_transactions(self, kind: Transaction) -> None:
        """PREPARED and ROLLBACK get queue offset 0, the others keep theirs."""
        data = encoder().encode(b"t", b"", b"", 7, 0, 1, 2, sys_flag=kind, prepared_transaction_offset=99)
        record = decode(data)
        assert record.transaction is kind
        assert record.queue_offset == (0 if kind in (Transaction.PREPARED, Transaction.ROLLBACK) else 7)
        assert record.prepared_transaction_offset == 99

    def test_all_bits_of_the_flag_are_kept(self) -> None:
        """Except those of the hosts, which the encoder knows better."""
        data = encoder(born=V6).encode(b"t", b"", b"", 7, 0, 1, 2, sys_flag=0x7FFFFFEF)
        assert decode(data).sys_flag == 0x7FFFFFDF

    def test_last_separator_is_added_before_the_crc(self) -> None:
        """As RocketMQ does; without the CRC the string is left as it is."""
        assert (
            decode(encoder().encode(b"t", b"", b"K\x01V", 0, 0, 1, 2)).raw_properties[:13] == b"K\x01V\x02__CRC32#\x01"
        )
        assert decode(encoder(False).encode(b"t", b"", b"K\x01V", 0, 0, 1, 2)).raw_properties == b"K\x01V"

    def test_what_was_remembered_never_leaks_into_another(self) -> None:
        """An encoder that alternates between topics and properties writes what a new one writes."""
        used = encoder()
        for topic, properties in product((b"a", b"b" * 200, b"a"), (b"", b"K\x01V\x02", b"K\x01W\x02", b"")):
            again = encoder().encode(topic, b"x", properties, 1, 2, 3, 4)
            assert used.encode(topic, b"x", properties, 1, 2, 3, 4) == again
            with pytest.raises(PropertiesTooLarge):
                used.size(b"c", b"x", b"p" * 40_000)

    def test_crc_digits_come_least_significant_first(self) -> None:
        """Ten digits, padded with zeros, over all bytes before the property."""
        data = small_record()
        digits = f"{crc32(data[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()
        assert data[-20:] == b"__CRC32#\x01" + digits + b"\x02"

    def test_message_ids(self) -> None:
        """32 characters for IPv4, 56 for IPv6."""
        assert message_id(V4.encode(), 0x123) == "7F00000100002A9F0000000000000123"
        assert message_id(V6.encode(), 1) == "20010DB800000000000000000000000700002AA00000000000000001"

    def test_blank(self) -> None:
        """The bytes remaining, and the magic."""
        assert encode_blank(8) == bytes.fromhex("00000008cbd43194")
        assert len(encode_blank(1 << 30)) == BLANK_BYTES


class TestRefused:
    """What can't be encoded is an error by name, and the encoder stays usable."""

    @pytest.mark.parametrize("topic", [b"", b"t" * 256])
    def test_topic_lengths(self, topic: bytes) -> None:
        with pytest.raises(IllegalTopic, match="1 to 255"):
            encoder().size(topic, b"", b"")

    @pytest.mark.parametrize(("append_crc", "most"), [(True, 32_747), (False, 32_767)])
    def test_properties_limit(self, append_crc: bool, most: int) -> None:
        """32,767 bytes, the CRC property included."""
        made = encoder(append_crc)
        fits = b"K\x01" + b"v" * (most - 3) + b"\x02"
        assert len(decode(made.encode(b"t", b"", fits, 0, 0, 1, 2)).raw_properties) == 32_767
        with pytest.raises(PropertiesTooLarge):
            made.encode(b"t", b"", fits + b"\x02", 0, 0, 1, 2)

    @pytest.mark.parametrize(
        "fields",
        [
            {"flag": 1 << 31},
            {"reconsume_times": -(1 << 31) - 1},
            {"queue_offset": 1 << 63},
            {"born_timestamp": 1 << 63},
            {"prepared_transaction_offset": 1 << 64},
        ],
    )
    def test_numbers_beyond_their_field(self, fields: dict[str, int]) -> None:
        good = {"queue_offset": 0, "physical_offset": 0, "born_timestamp": 1, "store_timestamp": 2}
        made = encoder()
        with pytest.raises(RecordError, match="does not fit"):
            made.encode(b"t", b"", b"", **(good | fields))
        assert made.encode(b"t", b"", b"", **good) == encoder().encode(b"t", b"", b"", **good)

    def test_more_than_two_gibibytes(self) -> None:
        class Huge(bytes):
            def __len__(self) -> int:
                return 1 << 31

        with pytest.raises(MessageTooLarge, match="2 GiB"):
            encoder().encode(b"t", Huge(), b"", 0, 0, 1, 2)

    def test_hosts(self) -> None:
        with pytest.raises(RecordError, match="is not an IPv4 or IPv6"):
            Host.of("example.org", 1)
        with pytest.raises(RecordError, match="4 or 16 bytes"):
            encoder(born=Host(b"123", 5))
        with pytest.raises(RecordError, match="32 bits"):
            encoder(born=Host(b"1234", 1 << 31))


class TestDamage:
    """Nothing is believed before it is checked."""

    @pytest.mark.parametrize("append_crc", [True, False])
    def test_cut_anywhere(self, append_crc: bool) -> None:
        """Every length short of the whole, which includes every field's boundary."""
        data = small_record(append_crc)
        for length in range(len(data)):
            with pytest.raises(CorruptRecord):
                decode(data[:length], physical_offset=1000)
            with pytest.raises(CorruptRecord):
                decode(data, physical_offset=1000, limit=length)
        assert decode(data, physical_offset=1000).body == b"body"

    @pytest.mark.parametrize(("name", "value"), HOSTILE)
    def test_hostile_numbers(self, name: str, value: int) -> None:
        """Lengths, magic and place of all kinds of wrong; no CRC helps here."""
        data = bytearray(small_record(append_crc=False))
        at, code = FIELDS[name]
        struct.pack_into(code, data, at, value)
        with pytest.raises(CorruptRecord) as caught:
            decode(bytes(data) + bytes(100), physical_offset=1000, queue_id=3, check_crc=False)
        assert caught.value.offset == 1000
        assert caught.value.reason

    @given(st.integers(0, 10_000), st.integers(1, 255))
    def test_any_flipped_byte_is_found(self, at: int, mask: int) -> None:
        """With the whole-record CRC no byte can change unseen."""
        data = bytearray(small_record())
        data[at % len(data)] ^= mask
        with pytest.raises(CorruptRecord):
            decode(data, physical_offset=1000, queue_id=3, require_crc=True)

    def test_body_crc(self) -> None:
        """Checked on its own; without `check_crc` it is not."""
        data = bytearray(small_record(append_crc=False))
        data[89] ^= 1
        with pytest.raises(CorruptRecord, match="body's CRC"):
            decode(data)
        assert decode(data, check_crc=False).body != b"body"

    def test_missing_crc(self) -> None:
        """A log that is always written with it has no record without."""
        with pytest.raises(CorruptRecord, match="CRC is missing"):
            decode(small_record(append_crc=False), require_crc=True)

    def test_torn_empty_body(self) -> None:
        """RocketMQ takes such a record for good, because its body CRC covers nothing.

        The whole-record CRC finds it.
        """
        data = bytearray(small_record(body=b""))
        data[40:60] = bytes(20)
        with pytest.raises(CorruptRecord, match="whole-record CRC"):
            decode(data)

    @pytest.mark.parametrize("topic", [b"../../x", b"..", b".", b"a/b", b"a\0b", b"\xff\xfe"])
    def test_topics_that_are_no_directory(self, topic: bytes) -> None:
        """A record must not lead out of the consume queues."""
        data = encoder().encode(topic, b"", b"", 0, 0, 1, 2)
        with pytest.raises(CorruptRecord, match="topic"):
            decode(data)

    def test_blank_is_no_record(self) -> None:
        with pytest.raises(CorruptRecord, match="BLANK"):
            decode(encode_blank(200) + bytes(192))

    @given(st.binary(max_size=300), st.integers(-5, 305))
    def test_any_bytes(self, data: bytes, position: int) -> None:
        """Nothing but CorruptRecord comes of rubbish."""
        with pytest.raises(CorruptRecord):
            decode(data, position)
