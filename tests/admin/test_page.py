"""The page in a real Chromium, of a real node, on a real broker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import httpx
import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from delay_devtools.service import ServiceProcess
from tests.admin.browser import AXE, PHONE, WIDE, Browser, chromium, missing
from tests.integration.bench import Bench, Place, await_true

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        bool(missing()), reason=f"apt-get install chromium chromium-driver: {missing()}"
    ),
]

HOUR_MS: Final = 3_600_000
AXE_SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
OVERRIDE: Final = "\N{RIGHT-TO-LEFT OVERRIDE}"
HOSTILE: Final = (
    f'</dd><script>document.title="owned"</script>{OVERRIDE}<img src=x onerror=alert(1)>'
)
PAGES: Final = (
    *("/", "/?unit=hour", "/slices", "/pending", "/dead-letters", "/run-books/delaylate"),
    *("/change/bulk?operation=cancel", "/change/pause?kind=target&name=orders"),
)


@dataclass(frozen=True, slots=True)
class Site:
    """A node and what it serves.

    Attributes:
        bench: its topics.
        url: of the page.
        target: a topic that records are for.
        hostile: a record whose every part is written by an enemy.
    """

    bench: Bench
    url: str
    token: str
    target: str
    hostile: Place
    services: list[ServiceProcess]

    def send(self, record_id: str, delay_ms: int = HOUR_MS) -> Place:
        """A record that the node has stored, and that waits."""
        headers = self.bench.to(self.target, delay_ms, ("delay-id", record_id))
        place = self.bench.send(headers, key=record_id.encode())
        await_true(lambda: self._is_pending(record_id), f"{record_id} is pending")
        return place

    def _is_pending(self, record_id: str) -> bool:
        answer = httpx.get(f"{self.url}/v1/records", params={"id": record_id}, timeout=30)
        return answer.is_success and "due_ms" in answer.json()[0]

    def record_path(self, place: Place) -> str:
        return f"/records/{self.bench.any}/{place[0]}/{place[1]}"

    def outcome(self, record_id: str) -> set[str | None]:
        """Return the outcomes of an id in the outcomes topic."""
        seen = self.bench.read_all(self.bench.outcomes)
        return {one.header("delay-outcome") for one in seen if one.header("delay-id") == record_id}


@pytest.fixture(scope="module")
def site(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    (port,) = free_ports(1)
    sets = [f"admin.listen=127.0.0.1:{port}", "node.node_id=page-node", "node.workers=1"]
    with Bench(cluster.bootstrap, folder, sets=sets) as bench:
        target = bench.target("orders")
        services = [bench.serve()]
        hostile = bench.send(
            [
                *bench.to(target, HOUR_MS, ("delay-id", HOSTILE)),
                (f"x{OVERRIDE}<b>", b"\x00\x1b[31m"),
                ("binary", bytes(range(256))),
            ],
            key=HOSTILE.encode(),
            value=("\N{COMBINING ACUTE ACCENT}" * 999 + "W" * 50_000).encode(),
        )
        bench.send(bench.to(f"{target}-denied<i>{OVERRIDE}", 0), value=HOSTILE.encode())
        token = (folder / "state" / "admin_token").read_text("ascii")
        yield Site(bench, f"http://127.0.0.1:{port}", token, target, hostile, services)
        assert services[-1].stop() == 0


@pytest.fixture(scope="module")
def shared() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(shared: Browser, site: Site) -> Browser:
    """One that no test has left a token in."""
    shared.look()
    shared.open(site.url + "/standing")
    shared.run("sessionStorage.clear()")
    shared.complaints()
    return shared


def press(browser: Browser, *keys: str) -> None:
    ActionChains(browser.driver).send_keys(*keys).perform()


def focused(browser: Browser) -> str:
    """Return the focused element as a screen reader announces it."""
    said = "const at = document.activeElement; return at.id || at.textContent.trim()"
    return str(browser.run(said))


def tab_to(browser: Browser, wanted: str) -> None:
    """Press Tab until something has the focus."""
    passed = []
    for _ in range(60):
        press(browser, Keys.TAB)
        passed.append(focused(browser))
        if passed[-1] == wanted:
            return
    raise AssertionError(f"{wanted!r} is not among {passed}")


# --- everything can be seen ----------------------------------------------------------------------


def test_axe_is_the_one_that_was_chosen() -> None:
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == AXE_SHA256


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_every_page_is_accessible_fits_and_the_console_is_silent(
    browser: Browser, site: Site, size: tuple[int, int], scheme: str
) -> None:
    browser.look(size=size, scheme="dark" if scheme == "dark" else "light")
    for path in (*PAGES, site.record_path(site.hostile), "/pending?id=none-*"):
        browser.open(site.url + path)
        browser.await_true(lambda: browser.run("return document.querySelector('.scripted')"), path)
        assert browser.violations() == [], path
        assert browser.width_left_over() == 0, path
        assert browser.complaints() == [], path
    ground = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert ground == ("rgb(14, 17, 22)" if scheme == "dark" else "rgb(246, 247, 249)")


def test_everything_can_be_read_with_scripts_blocked(site: Site) -> None:
    place = site.send("read-me")
    with chromium(scripts=False) as browser:
        wanted = {
            "/": ("Healthy.", "Pending", "Due times", "page-node"),
            "/slices": ("page-node", "owner"),
            f"/pending?{urlencode({'target': 'to_*', 'from': 'now', 'to': '+2h'})}": ("read-me",),
            "/pending?id=read-me": ("Pending", "it waits", "read-me", site.target, "in 59 min"),
            site.record_path(place): ("As it was written", "delay-after", str(HOUR_MS)),
            "/dead-letters": ("target-invalid",),
        }
        for path, texts in wanted.items():
            browser.open(site.url + path)
            seen = browser.text("body")
            assert "Scripts are blocked" in seen, path
            for text in texts:
                assert text in seen, (path, text)
            assert browser.complaints() == [], path
        browser.open(site.url + "/change/cancel?id=read-me")
        browser.fill("token", site.token)
        browser.click(".change button")
        assert browser.text("#result").startswith("cancelled: ")


def test_markup_in_records_is_shown_and_not_executed(browser: Browser, site: Site) -> None:
    for path in (site.record_path(site.hostile), "/pending", "/dead-letters"):
        browser.open(site.url + path)
        shown = browser.text("main")
        assert "U+202E" in shown, path
        assert OVERRIDE not in browser.run("return document.body.textContent"), path
        assert browser.run("return document.querySelector('main :is(script, img, b i)')") is None
        assert "owned" not in browser.driver.title
    browser.open(f"{site.url}/pending?id={quote(HOSTILE)}")
    assert browser.driver.current_url == site.url + site.record_path(site.hostile)
    assert "49,999 W" not in browser.text("main")
    assert "more characters" in browser.text("pre.value")
    assert browser.complaints() == []


def test_times_are_local_and_say_what_they_are_in_utc(browser: Browser, site: Site) -> None:
    place = site.send("zoned")
    browser.look(zone="Asia/Kolkata")
    browser.open(site.url + site.record_path(place))
    due = browser.driver.find_element(By.CSS_SELECTOR, '#record time[data-form="full"]')
    assert due.text.endswith("GMT+5:30")
    assert " UTC = " in str(due.get_attribute("title"))


# --- fresh figures -------------------------------------------------------------------------------


def test_figures_change_without_a_reload_and_what_is_open_stays_so(
    browser: Browser, site: Site
) -> None:
    browser.open(site.url + "/?unit=hour")
    browser.driver.find_element(By.CSS_SELECTOR, "#timeline-table summary").click()
    browser.run("window.notReloaded = true")
    before = browser.text(".tile.main .figure")
    for number in range(3):
        site.send(f"fresh-{number}", 2 * HOUR_MS)
    browser.await_true(lambda: browser.text(".tile.main .figure") != before, "a new figure")
    assert browser.run("return window.notReloaded")
    assert browser.run("return document.getElementById('timeline-table').open")
    assert browser.run("return document.activeElement.tagName") == "SUMMARY"


def test_a_hidden_page_asks_for_nothing_until_it_is_seen_again(
    browser: Browser, site: Site
) -> None:
    polls = "return performance.getEntriesByType('resource').length"
    clock = "return performance.now()"
    browser.open(site.url + "/slices")
    browser.await_true(lambda: browser.run(polls) > 5, "polls")
    browser.driver.minimize_window()
    browser.await_true(lambda: browser.run("return document.hidden"), "it is hidden")
    hidden_ms = browser.run(clock)
    browser.await_true(lambda: browser.run(clock) > hidden_ms + 1_500, "a poll under way to end")
    asked = browser.run(polls)
    browser.await_true(lambda: browser.run(clock) > hidden_ms + 3_500, "occasions to ask")
    assert browser.run(polls) == asked
    browser.driver.set_window_size(*WIDE)
    browser.await_true(lambda: browser.run(polls) > asked, "a poll")


def test_a_node_that_goes_away_is_told_and_so_is_its_return(browser: Browser, site: Site) -> None:
    browser.open(site.url + "/")
    site.services[-1].kill()
    try:
        gone = browser.driver.find_element(By.ID, "gone")
        browser.await_true(gone.is_displayed, "that the node is gone")
        assert "does not answer" in gone.text
        browser.await_true(lambda: "old" in gone.text, "the age of the figures")
        assert browser.run("return document.documentElement.classList.contains('stale')")
    finally:
        site.services.append(site.bench.serve())  # for the tests that come, too
    browser.await_true(lambda: not gone.is_displayed(), "that the node is back", 60)
    browser.complaints()  # refused connections, while it was away


# --- changes -------------------------------------------------------------------------------------


def test_a_record_is_found_and_cancelled_by_keyboard_alone(browser: Browser, site: Site) -> None:
    site.send("by-keyboard")
    browser.open(site.url + "/pending")
    press(browser, Keys.TAB)
    assert focused(browser) == "Skip to the content"
    press(browser, Keys.ENTER)
    tab_to(browser, "id")
    press(browser, "by-keyboard", Keys.ENTER)
    browser.await_true(lambda: "/records/" in browser.driver.current_url, "the record's page")
    tab_to(browser, "Cancel…")
    press(browser, Keys.ENTER)
    browser.await_true(lambda: focused(browser) == "token", "the form")
    press(browser, site.token, Keys.ENTER)
    browser.await_true(lambda: focused(browser) == "result", "an answer")
    assert browser.text("#result").startswith("cancelled: ")
    assert browser.text("#by") == "as admin"
    assert site.outcome("by-keyboard") == {"cancelled"}


def test_a_wrong_token_is_told_and_changes_nothing(browser: Browser, site: Site) -> None:
    place = site.send("guarded")
    browser.open(site.url + site.record_path(place))
    browser.click('a[href^="/change/cancel"]')
    browser.await_true(lambda: focused(browser) == "token", "the form")
    press(browser, "wrong-t\u00f6ken", Keys.ENTER)
    browser.await_true(lambda: browser.count("#error"), "an error")
    assert "token that was sent is not" in browser.text("#error")
    browser.await_true(lambda: focused(browser) == "token", "the form again")
    assert browser.run("return sessionStorage.length") == 0
    assert site.outcome("guarded") == set()


def test_a_record_is_fired_from_the_list_and_the_token_is_nowhere_else(
    browser: Browser, site: Site
) -> None:
    site.send("fire-me", 3 * HOUR_MS)
    browser.open(f"{site.url}/pending?{urlencode({'from': '+2h30m', 'target': site.target})}")
    browser.click('a[href^="/change/fire"]')
    browser.await_true(lambda: focused(browser) == "token", "the form")
    press(browser, site.token, Keys.ENTER)
    browser.await_true(lambda: browser.count("#result"), "an answer")
    assert browser.text("#result").startswith("fired: ")
    (seen,) = site.bench.await_match(site.target, lambda one: one.header("delay-id") == "fire-me")
    assert seen.key == b"fire-me"

    assert site.token not in browser.driver.page_source
    assert site.token not in browser.driver.current_url
    assert browser.run("return localStorage.length + document.cookie.length") == 0
    assert browser.run("return Object.values(sessionStorage)") == [site.token]


def test_a_record_gets_another_due_time(browser: Browser, site: Site) -> None:
    place = site.send("move-me")
    browser.open(site.url + site.record_path(place))
    browser.click('a[href^="/change/reschedule"]')
    browser.await_true(lambda: focused(browser) == "at_ms", "the form")
    for typed in ("soon", "+5h"):
        browser.fill("at_ms", typed)
        browser.fill("token", site.token)
        assert browser.violations() == []
        browser.click(".change button")
        if typed == "soon":
            assert "'soon' is no time" in browser.text("#error")
    assert browser.text("#result").startswith("replaced: ")
    assert site.outcome("move-me") == {"replaced"}
    browser.open(f"{site.url}/pending?id=move-me")
    assert browser.text("#record time").startswith("in 4 h 59 min")


def test_all_that_match_are_counted_and_then_cancelled(browser: Browser, site: Site) -> None:
    for number in range(3):
        site.send(f"many-{number}")
    browser.open(f"{site.url}/pending?{urlencode({'id': 'many-*'})}")
    browser.click('a[href^="/change/bulk?operation=cancel"]')
    assert "3 match" in browser.text(".facts")
    browser.fill("token", site.token)
    browser.click(".change button")
    assert browser.text("#result") == "3 records: 3 cancelled"
    assert site.outcome("many-1") == {"cancelled"}


def test_a_target_is_paused_and_resumed(browser: Browser, site: Site) -> None:
    site.send("held")
    for change, after in (("pause", "Resume"), ("resume", "Pause")):
        browser.open(site.url + "/")
        link = f'a[href="/change/{change}?kind=target&name={site.target}"]'
        browser.await_true(lambda link=link: browser.count(link), "the target")  # type: ignore[misc]
        browser.click(link)
        browser.fill("token", site.token)
        browser.click(".change button")
        assert browser.text("#result") == "done"
        browser.click("#back")
        link = f'a[aria-label="{after} {site.target}"]'
        browser.await_true(lambda link=link: browser.count(link), after)  # type: ignore[misc]


# --- questions that can't be answered ------------------------------------------------------------


def test_a_wrong_search_field_is_marked_and_explained(browser: Browser, site: Site) -> None:
    browser.open(f"{site.url}/pending?from=tomorrow&target=orders")
    assert "'tomorrow' is no time" in browser.text("#from-error")
    assert browser.run("return document.getElementById('target').value") == "orders"
    browser.open(f"{site.url}/pending?from=%2B1h&to=now")
    assert "The end lies before" in browser.text("#to-error")
    browser.open(f"{site.url}/records/{site.bench.any}/0/999999")
    assert "holds offsets from" in browser.text("#error-detail")
    assert browser.violations() == []
