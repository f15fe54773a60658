"""Random damage to the files of a lane."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

Damage = tuple[str, float, float, bytes]

places = st.floats(0, 1, exclude_max=True)
damages: st.SearchStrategy[list[Damage]] = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "zero", "splice", "insert", "remove", "lengthen", "garbage"]),
        places,
        places,
        st.binary(min_size=1, max_size=64),
    ),
    min_size=1,
    max_size=4,
)


def damage(lane: Path, damages: list[Damage], which: str) -> None:
    """Damages files of the log (`commitlog`) or of the consume queues."""
    files = sorted(path for path in (lane / which).rglob("0*") if path.is_file())
    for kind, where, how, content in damages:
        file = files[int(where * len(files))]
        data = bytearray(file.read_bytes())
        if not data:
            continue
        if kind == "remove":
            file.unlink()
            file.touch()
            continue
        change(data, kind, how, content, files[content[0] % len(files)].read_bytes())
        file.write_bytes(data)


def change(data: bytearray, kind: str, how: float, content: bytes, other: bytes) -> None:
    """Damages bytes. `how` is the place, as a part of all; a splice takes some of `other`."""
    at = int(how * len(data))
    length = int.from_bytes(content[:2], "big")
    if kind == "flip":
        data[at] ^= 1 << content[0] % 8
    elif kind in ("cut", "remove"):
        del data[0 if kind == "remove" else at :]
    elif kind == "zero":
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif kind == "splice":
        replaced = len(data[at : at + length])
        data[at : at + length] = other[length : length + replaced].ljust(replaced, b"\0")
    elif kind == "insert":
        data[at:at] = content
    elif kind == "lengthen":
        data += content * 100
    else:
        data[at : at + len(content)] = content
