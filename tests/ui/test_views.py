"""The views of the page in a real browser: light, dark, narrow, wide; messages are hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import commitlog
from tests.browser import BROWSER, Page, browse
from tests.ui.test_page import serving
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

HOSTILE = "</td><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
LARGE = b'{"id": 9007199254740993, "lines": [{"sku": "a"}, {"sku": "b"}], "note": "' + b"z" * 300_000 + b'"}'
BACKGROUND = {"light": (255, 255, 255), "dark": (18, 18, 18)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    path = tmp_path_factory.mktemp("views") / "events"
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 22}}) as store, store.producer() as producer:
        store.create_topic("sales", schema="id BIGINT NOT NULL, fruit STRING, tags ARRAY<STRING>")
        rows = [{"id": 2**53 + 1 + number, "fruit": HOSTILE, "tags": [HOSTILE, "y"]} for number in range(30)]
        producer.send_rows("sales", rows)
        for number in range(30):
            value = json.dumps({HOSTILE: [number, {"text": HOSTILE}]}).encode()
            producer.send("orders", value, key=f"{HOSTILE} {number}", headers={"trace": HOSTILE})
        producer.send("large", LARGE, key="k" * 3000)
        producer.send("later", b"old")
        producer.flush(timeout=60)
        yield store


@pytest.fixture
def page(store: commitlog.Store, tmp_path: Path) -> Iterator[Page]:
    with serving(store.path) as address, browse(address, tmp_path / "profile") as page:
        page.see("#topics", "orders")
        yield page
        assert page.complaints == []
        assert page.text("title") != "taken"


VIEWS = {
    "overview": ("", "#topics", "orders", ["#plot-rate", "#plot-lag", "#plot-sync", "#topics", "#stages"]),
    "orders": ("#topic=orders&start=earliest", "#found", "onerror", ["#ask", "#found"]),
    "sales": ("#topic=sales&start=earliest", "#found", "9007199254740993", ["#ask", "#found"]),
}


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_view_can_be_seen(page: Page, tmp_path: Path, scheme: str, width: int) -> None:
    """Each part is in the window, and has marks that differ enough from the background."""
    page.scheme(scheme)
    for name, (place, selector, text, parts) in VIEWS.items():
        page.resize(width, 2500)
        page.ask(f"location.hash = {json.dumps(place)}")
        page.see(selector, text)
        assert page.check_seen(parts, tmp_path / f"{name}.png") == BACKGROUND[scheme]
    page.ask("location.hash = ''")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_axes_of_a_plot_can_be_seen(page: Page, scheme: str) -> None:
    """Their texts are light on dark and dark on light."""
    page.scheme(scheme)
    texts = (
        "(() => {const c = document.getElementById('plot-rate'); "
        "const d = c.getContext('2d').getImageData(0, 0, 50, c.height).data; "
        "return [...d.keys()].filter((i) => i % 4 === 3 && d[i] > 200).map((i) => d[i - 1])})()"
    )

    def found() -> bool:
        blues = page.ask(texts)
        return bool(blues) and all((blue > 128) is (scheme == "dark") for blue in blues)

    wait_until(found, "numbers of an axis that can be read")


def test_a_click_on_a_topic_shows_its_messages(page: Page) -> None:
    page.ask("[...document.querySelectorAll('#topics a')].find((a) => a.innerText === 'orders').click()")
    page.see("#found", "onerror")
    assert not page.ask("document.getElementById('messages').hidden")
    assert page.ask("document.getElementById('overview').hidden")
    assert page.box("#found")[1] < 800


def test_columns_of_a_typed_topic_and_all_of_its_rows(page: Page) -> None:
    page.ask("location.hash = '#topic=sales&start=earliest'")
    page.see("#found", "show all 30 rows")
    heads = page.ask("[...document.querySelectorAll('#found th')].map((th) => th.innerText)")
    assert heads[:6] == ["partition", "offset", "stored", "id", "fruit", "tags"]
    page.ask("document.querySelector('#found td:last-child .more').click()")
    page.see("#found", str(2**53 + 30))
    assert page.ask("document.querySelectorAll('#found tr').length") == 31


def test_a_large_value_is_cut_and_its_json_folds(page: Page) -> None:
    """All of it is there on demand, in a box of its own; numbers keep their digits."""
    page.ask("location.hash = '#topic=large&start=earliest'")
    page.see("#found", "show all 300.1 kB")
    assert page.ask("document.documentElement.scrollHeight") < 2000
    page.ask("[...document.querySelectorAll('#found .more')].forEach((more) => more.click())")
    wait_until(lambda: page.ask("document.querySelector('#found details') !== null"), "JSON that folds")
    assert "kkk" in page.text("#found .whole")
    page.ask("document.querySelector('#found details').open = true")
    page.see("#found details", "9007199254740993")
    page.ask("[...document.querySelectorAll('#found details details')].forEach((part) => (part.open = true))")
    page.see("#found details", "sku")
    assert page.ask("document.documentElement.scrollHeight") < 3000


def test_search_follow_and_links(page: Page, store: commitlog.Store, tmp_path: Path) -> None:
    """A link opens the same in another browser."""
    page.ask(f"location.hash = '#topic=orders&start=earliest&search={quote('> 17')}'")
    page.see("#answer", "1 found in 30 messages")
    page.ask("document.querySelectorAll('#found a')[0].click()")  # the offset
    assert page.see("#found", "> 29").count("> ") >= 13
    page.ask("document.getElementById('link').click()")
    address = page.ask("document.querySelector('#linked input').value")
    with browse(address, tmp_path / "colleague") as other:
        assert "> 16" not in other.see("#found", "> 17")
    page.ask("document.querySelectorAll('#found a')[1].click()")  # the time
    wait_until(lambda: "start=20" in page.ask("location.hash"), "a time in the address")
    page.ask("location.hash = '#topic=later&follow=yes&start=latest'")
    page.see("#answer", "follows")
    with commitlog.Producer(store.path) as producer:
        for text in ("first", "second"):
            producer.send("later", text.encode())
            page.see("#found tr:nth-child(2)", text)
    page.ask("document.getElementById('stop').click()")
    page.see("#answer", "stopped")


def test_two_stores(store: commitlog.Store, tmp_path: Path) -> None:
    """A click on the other one shows it. Both can be seen in each scheme and width."""
    with (
        commitlog.Store.open(tmp_path / "logs", {"store": {"segment_bytes": 1 << 16}}) as other,
        serving(store.path, other.path) as address,
        browse(address, tmp_path / "profile") as page,
    ):
        page.see("#stores", "logs good")
        page.see("#topics", "orders")
        page.ask("document.querySelectorAll('#stores a')[1].click()")
        page.see("#path", str(other.path))
        page.see("#topics", "none")
        for scheme, background in BACKGROUND.items():
            page.scheme(scheme)
            for width in (400, 1300):
                page.resize(width, 2500)
                parts = ("#stores a:nth-child(1)", "#stores a:nth-child(2)", "#path", "#plot-rate", "#stages")
                assert page.check_seen(parts, tmp_path / f"{scheme}-{width}.png") == background
        assert page.complaints == []
