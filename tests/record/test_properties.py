"""Topics, property strings and tags codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import IllegalProperty, IllegalTopic, PropertiesTooLarge
from commitlog.record.properties import decode_properties, encode_properties, tags_code
from commitlog.record.tags_column import tags_codes_of
from commitlog.record.topic_names import check_topic

PIECES = st.sampled_from(["\x01", "\x02", "TAGS", "TAGS\x01", "\x02TAGS\x01", "KEYS\x01", "a", "S\x01", "ü", "\0"])


class TestTopic:
    @pytest.mark.parametrize("topic", ["a", "%RETRY%group-1", "a|b", "A_b.c-9", "...", "t" * 255])
    def test_good(self, topic: str) -> None:
        assert check_topic(topic) == topic.encode()

    @pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "ä", "a\n", "@x", "t" * 256, "a\0"])
    def test_refused(self, topic: str) -> None:
        with pytest.raises(IllegalTopic):
            check_topic(topic)

    @pytest.mark.parametrize("topic", [b"a", None, 5])
    def test_not_text(self, topic: Any) -> None:
        with pytest.raises(IllegalTopic, match="is a str"):
            check_topic(topic)


class TestEncode:
    def test_order(self) -> None:
        """KEYS, TAGS, WAIT, then the user's in their order."""
        made = encode_properties("k1 k2", "t", {"b": "1", "a": "ü"}, wait=False)
        assert made == "KEYS\x01k1 k2\x02TAGS\x01t\x02WAIT\x01false\x02b\x011\x02a\x01ü\x02".encode()

    def test_nothing(self) -> None:
        """None, and no headers, are no properties at all."""
        assert encode_properties(None, None, None) == encode_properties(None, None, {}) == b""

    @pytest.mark.parametrize("name", ["KEYS", "TAGS", "WAIT", "UNIQ_KEY", "DELAY", "INNER_NUM", "CLUSTER", "__CRC32#"])
    def test_names_of_rocketmq(self, name: str) -> None:
        with pytest.raises(IllegalProperty, match="RocketMQ"):
            encode_properties(None, None, {name: "x"})

    @pytest.mark.parametrize("bad", ["\x01", "a\x02b", "", "\ud800"])
    def test_what_can_not_be_stored(self, bad: str) -> None:
        for arguments in ((None, None, {bad: "x"}), (None, None, {"x": bad}), (bad, None, None), (None, bad, None)):
            with pytest.raises(IllegalProperty):
                encode_properties(*arguments)

    @pytest.mark.parametrize("properties", [{"a": 1}, {1: "a"}, {"a": b"x"}, {"a": None}])
    def test_not_text(self, properties: Any) -> None:
        with pytest.raises(IllegalProperty, match="both str"):
            encode_properties(None, None, properties)

    @pytest.mark.parametrize(("append_crc", "most"), [(True, 32_747), (False, 32_767)])
    def test_limit(self, append_crc: bool, most: int) -> None:
        """In bytes, with room for the CRC property where it follows."""
        value = "ü" * ((most - 3) // 2)
        assert len(encode_properties(None, None, {"k": value}, append_crc=append_crc)) == most
        with pytest.raises(PropertiesTooLarge):
            encode_properties(None, None, {"kk": value}, append_crc=append_crc)


class TestDecode:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"", {}),
            (b"a\x01b", {"a": "b"}),
            (b"a\x01b\x02", {"a": "b"}),
            (b"a\x01\x02\x01b\x02c\x02", {}),
            (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
            (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
            (b"\x02\x02a\x01\xff\x02", {"a": "\ufffd"}),
        ],
    )
    def test_as_rocketmq(self, data: bytes, expected: dict[str, str]) -> None:
        """What its parser makes of odd strings."""
        assert decode_properties(data) == expected

    @given(st.dictionaries(st.text(min_size=1).filter(str.isidentifier), st.text(min_size=1), max_size=4))
    def test_comes_back(self, properties: dict[str, str]) -> None:
        clean = {name: text for name, text in properties.items() if not set(text) & {"\x01", "\x02"}}
        clean = {name: text for name, text in clean.items() if text.isprintable()}
        assert decode_properties(encode_properties("k", "t", clean)) == {"KEYS": "k", "TAGS": "t", **clean}


class TestTagsCode:
    @pytest.mark.parametrize(
        ("tags", "code"), [(None, 0), ("", 0), ("A", 65), ("TagA", 2598919), ("zzzzzz", -685785664), ("🙂", 1772965)]
    )
    def test_known(self, tags: str | None, code: int) -> None:
        """Java's String.hashCode; a character beyond 16 bits counts as its two halves."""
        assert tags_code(tags) == code

    @given(st.text())
    def test_as_defined(self, tags: str) -> None:
        units = np.frombuffer(tags.encode("utf-16-le", "surrogatepass"), "<u2").tolist()
        code = 0
        for unit in units:
            code = (code * 31 + unit) & 0xFFFFFFFF
        assert tags_code(tags) == code - (code >> 31 << 32)

    @given(st.lists(st.lists(PIECES, max_size=8).map("".join).map(str.encode), max_size=12))
    def test_column(self, strings: list[bytes]) -> None:
        """The codes of many strings at once are those of each string.

        Some strings end in the middle of a name.
        """
        check_column(strings)

    @given(st.lists(st.lists(PIECES, min_size=6, max_size=6).map("".join), max_size=9))
    def test_column_of_equal_sizes(self, strings: list[str]) -> None:
        check_column([string.encode()[:9].ljust(9) for string in strings])

    def test_column_of_equal_strings(self) -> None:
        check_column([b"K\x01V\x02TAGS\x01a\x02"] * 3)


def check_column(strings: list[bytes]) -> None:
    data = b"TAGS\x01" + b"".join(strings) + b"GS\x01x\x02"
    sizes = np.array([len(string) for string in strings], np.int64)
    positions = 5 + np.cumsum(sizes) - sizes
    expected = [tags_code(decode_properties(string).get("TAGS")) for string in strings]
    assert tags_codes_of(np.frombuffer(data, np.uint8), positions, sizes).tolist() == expected
