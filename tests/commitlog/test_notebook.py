"""How objects show themselves: short, and in a notebook as tables in which no HTML of users is."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import commitlog
from commitlog.planning.address import Credentials, parse_address
from commitlog.text.notebook import CELL_CHARACTERS_MAX, ROWS_MAX, html_table, shortened
from tests.builders.hand_made import HandMadeStore, small_store
from tests.builders.typed_topic import declare
from tests.command_line import run
from tests.served import forget_connection, name_of

HOSTILE = "<img src=x onerror=alert(1)>&\"'</td></table><script>alert(2)</script>"
TAGS = {"table", "caption", "tr", "th", "td"}


class Page(HTMLParser):
    """The cells of some tables. It fails for a tag, an attribute or a comment that is not ours."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert not attrs
        self.open.append(tag)
        if tag in ("caption", "th", "td"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"{data!r} is no part of a table of ours")

    def handle_decl(self, decl: str) -> None:
        self.handle_comment(decl)

    def handle_pi(self, data: str) -> None:
        self.handle_comment(data)

    def unknown_decl(self, data: str) -> None:
        self.handle_comment(data)


def page_of(shown: Any) -> Page:
    return Page(shown._repr_html_())


@given(st.lists(st.text() | st.binary() | st.just(HOSTILE) | st.none() | st.integers(), max_size=5), st.text())
def test_no_value_is_markup(values: list[Any], title: str) -> None:
    """Whatever they are: the page has our tags only, and what it shows can be printed."""
    text = html_table(title, [values, [HOSTILE, HOSTILE.encode()]], [HOSTILE, title])
    page = Page(text)
    assert len(page.cells) == 5 + len(values)
    assert page.cells[-2:] == [HOSTILE, repr(HOSTILE.encode())]
    assert text.isprintable()
    text.encode()  # no half of a surrogate pair


def test_what_is_long_is_cut() -> None:
    page = Page(html_table("t", [("x" * 10_000, b"y" * 10_000, list(range(10_000)))] * (ROWS_MAX + 7)))
    assert max(map(len, page.cells)) <= CELL_CHARACTERS_MAX + 40
    assert "… (10,000 characters)" in page.cells[1]
    assert "… (10,000 bytes)" in page.cells[2]
    assert page.cells[-1] == "… 7 more"
    assert len(page.cells) == 3 * ROWS_MAX + 2
    assert shortened(b"abc") == "b'abc'"


def test_a_store_and_its_statistics(tmp_path: Path) -> None:
    path = tmp_path / HOSTILE.replace("/", ":")
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send_batch("orders", [b"x"] * 3)
        producer.flush()
        statistics = store.statistics()
        assert repr(store) == f"Store({str(path)!r})"
        assert repr(statistics) == f"StoreStatistics({str(path)!r}, state='running', lanes=1, messages=3, …)"
        assert repr(producer.statistics()).startswith("LaneStatistics(lane=0, messages=3, wrote=")
        assert repr(statistics.stages[0]).startswith("StageStatistics(stage='committer', pid=")
        assert repr(statistics.retention).startswith("RetentionStatistics(deleted_segments=0, ")
        with commitlog.Reader(path) as reader:
            assert len(list(reader)) == 3
            assert repr(reader.statistics()) == "ReaderStatistics(messages=3, behind_bytes={0: 0}, …)"
            assert page_of(reader.statistics()).cells[:3] == ["ReaderStatistics", "messages", "3"]
        assert page_of(store).cells[0] == f"Store {path}: running"
        for one in (statistics, *statistics.lanes, *statistics.stages, statistics.retention):
            assert len(repr(one)) < 300
            assert "flusher" in page_of(one).cells or one is not statistics
    assert page_of(store).cells[0] == f"Store {path}: stopped"
    shutil.rmtree(path)
    assert "no store" in page_of(store).cells[1]


def test_topics_are_a_table(tmp_path: Path) -> None:
    """A list with what `commitlog topics --json` has, for Polars, a terminal and a notebook."""
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        assert store.topics() == []
        assert repr(store.topics()).split() == ["topic", "messages", "bytes", "messages/s", "oldest", "newest", "lanes"]
        assert page_of(store.topics()).cells[0] == "Topics"
        producer.send_batch("orders", [b"x"] * 1_000)
        store.create_topic("typed", "id BIGINT, name STRING")
        producer.flush()
        topics = store.topics()
        printed = run("topics", store.path, "--json").stdout
    assert json.loads(json.dumps(topics)) == json.loads(printed)["topics"]
    assert polars.DataFrame(topics)["messages"].to_list() == [1_000, 0]
    _, first, second = repr(topics).splitlines()
    assert first.split()[:2] == ["orders", "1,000"]
    assert second.split() == ["typed", "0", "0", "0.0"]
    cells = page_of(topics).cells
    assert cells[9:11] == ["orders", "1,000"]
    assert cells[-1] == "id, name"


def message(**changed: Any) -> commitlog.Message:
    fields: dict[str, Any] = {
        "topic": "orders", "partition": 2, "offset": 7, "key": "k", "value": b"v", "headers": {"a": "b"}, "tags": None,
        "timestamp": 1, "born_timestamp": 2, "physical_offset": 3, "message_id": "00", "properties": {},
    }  # fmt: skip
    return commitlog.Message(**fields | changed)


def test_a_message() -> None:
    """As a dataclass shows itself, but for values that are too long."""
    fields = "partition=2, offset=7, key='k', value=b'v', headers={'a': 'b'}, tags=None"
    others = "timestamp=1, born_timestamp=2, physical_offset=3, message_id='00'"
    assert repr(message()) == f"Message(topic='orders', {fields}, {others})"
    large = message(value=b"\xff" * 1_000_000, key=HOSTILE, headers={"h": "x" * 10_000})
    assert "… (1,000,000 bytes), headers={'h': 'xxx" in repr(large)
    assert len(repr(large)) < 1_500
    cells = page_of(large).cells
    assert cells[:2] == ["Message", "topic"]
    assert cells[8] == HOSTILE
    assert max(map(len, cells)) < 1_000


def test_a_scan(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "<b>store")
    declare(store, "orders", pa.schema([(HOSTILE, pa.int32())]))
    scan = commitlog.read(store.path, "orders")
    assert repr(scan) == f"Scan({str(store.path)!r}, 'orders', lanes=0, messages=0)"
    assert page_of(scan).cells[-2:] == [HOSTILE, "int32"]
    small_store(tmp_path / "other", 5)
    other = commitlog.read(tmp_path / "other", "orders", start=2)
    assert repr(other) == f"Scan({str(tmp_path / 'other')!r}, 'orders', lanes=2, messages=6)"
    assert page_of(other).cells[5:13] == ["0", "2", "5", "3", "1", "2", "5", "3"]


def test_a_reader(tmp_path: Path) -> None:
    """Its place in each lane, and how far it is behind, as long as there is a store."""
    path = small_store(tmp_path / "<b>store", 5).path
    with commitlog.Reader(path, "orders") as reader:
        next(reader)
        assert repr(reader) == f"Reader({str(path)!r}, topic='orders', given=1)"
        cells = page_of(reader).cells
        assert cells == [
            *(repr(reader), "topic", "lane", "next offset", "messages behind"),
            *("orders", "0", "1", "4", "orders", "1", "0", "5"),
        ]
    assert repr(reader) == f"Reader({str(path)!r}, topic='orders', closed, given=1)"
    assert "closed" in page_of(reader).cells[1]
    with commitlog.Reader(path, name="billing", follow=True) as reader:
        assert repr(reader) == f"Reader({str(path)!r}, topic=None, name='billing', follow=True, given=0)"
        shutil.rmtree(path)
        assert "no store" in page_of(reader).cells[1]


def test_a_scan_shows_no_credential(served_base: str, tmp_path: Path) -> None:
    small_store(tmp_path / "store", 1)
    url = f"{served_base}/{quote(name_of(tmp_path / 'store'))}"
    try:
        scan = commitlog.read(url, "orders", token="clog_secret")
        for text in (repr(scan), scan._repr_html_(), str(vars(scan))):
            assert "secret" not in text
    finally:
        forget_connection(parse_address(url).with_credentials(Credentials("clog_secret")))
