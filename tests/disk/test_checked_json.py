"""Small JSON files with a checksum: what a bit may change, and files of older packages."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from commitlog.disk.checked_json import from_checked_json, to_checked_json

DOCUMENTS: list[dict[str, Any]] = [
    {"lane": 0, "store": "0123456789abcdef" * 2, "topics": {"orders": {"before": 42, "deleted": True}}},
    {"name": "é", "offsets": {"t": {0: 1, 10: 1 << 62}}, "rate": 0.1, "more": [None, -1, 'a"b\\']},
    {},
]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("indented", [False, True])
def test_no_flipped_bit_changes_what_is_read(document: dict[str, Any], indented: bool) -> None:
    """Each bit of the text: it is refused, or says the same (white space); so is each cut."""
    data = to_checked_json(document, indented=indented)
    said = orjson.loads(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))
    assert from_checked_json(data, ()) == said
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert from_checked_json(bytes(flipped), document.keys()) == said
        except ValueError:
            continue
    for end in range(len(data) - 1):
        with pytest.raises(ValueError, match=r"."):
            from_checked_json(data[:end], document.keys())


def test_files_without_a_checksum() -> None:
    """They are believed where they have no field that is not known."""
    assert from_checked_json(b'{"lane": 3}', ("lane", "store")) == {"lane": 3}
    with pytest.raises(ValueError, match=r"no crc32.*'crc3r'"):
        from_checked_json(b'{"lane": 3, "crc3r": "00000000"}', ("lane",))
    for text in (b"[]", b"3", b"null"):
        with pytest.raises(ValueError, match="no JSON object"):
            from_checked_json(text, ())


def test_a_file_that_an_older_package_has_written_again() -> None:
    """It keeps fields that it does not know, before its own: the checksum is not of these bytes."""
    sealed = orjson.loads(to_checked_json({"generation": 3}))
    kept = {"crc32": sealed["crc32"], "generation": 4}
    assert from_checked_json(orjson.dumps(kept), ("generation",)) == {"generation": 4}
