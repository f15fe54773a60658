"""The table of words refuses what would let two processes disturb each other."""

from __future__ import annotations

import pytest

from commitlog.shm.layout import DECLARED, Lane, block, segment_start, word


def declare(**words: int) -> None:
    """A block of 16 words, as the modules' own are declared."""
    block(size=16)(type("Made", (), words))


def test_a_declared_word_is_a_plain_number() -> None:
    """It is used in the hottest places, as an index."""
    assert type(Lane.DATA_END) is int
    assert DECLARED["Lane"]["DATA_END"].index == Lane.DATA_END
    assert DECLARED["Lane"]["DATA_END"].width == 8


def test_a_wrong_table_is_refused(subtests: pytest.Subtests) -> None:
    """At import, before anybody stores a word."""
    lessee, flusher = word(0, writer="lessee"), word(8, writer="flusher")
    declare(LESSEE=lessee, FLUSHER=flusher)
    wrong = {
        "overlaps": {"LESSEE": lessee, "WIDE": word(1, writer="lessee", width=7), "LAST": word(7, writer="lessee")},
        "outside": {"WIDE": word(8, writer="lessee", width=9)},
        "several writers": {"LESSEE": lessee, "FLUSHER": word(7, writer="flusher")},
        "hot word": {"LESSEE": lessee, "HOT": word(1, writer="lessee", alone=True)},
        "not declared": {"LESSEE": lessee, "NUMBER": 8},
    }
    for reason, words in wrong.items():
        with subtests.test(reason), pytest.raises(AssertionError, match=reason):
            declare(**words)


def test_a_segment_starts_at_or_below_all_that_it_holds() -> None:
    """The first offset of the next one is the next one's."""
    assert [segment_start(where, 100) for where in (0, 99, 100, 250)] == [0, 0, 100, 200]
