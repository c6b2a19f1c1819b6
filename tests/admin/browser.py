"""A real Chromium, driven by Debian's chromedriver. Nothing is downloaded, nothing is mocked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

WAIT_S: Final = 15.0
WIDE: Final = (1280, 900)
PHONE: Final = (360, 760)
AXE: Final = Path(__file__).parent / "vendor" / "axe-core-4.14.1" / "axe.min.js"
_BLOCK: Final = 2

Scheme = Literal["light", "dark"]


def missing() -> str:
    """Return the names of missing programs."""
    tools = ("chromium", "chromedriver")
    return ", ".join(tool for tool in tools if shutil.which(tool) is None)


@contextmanager
def chromium(*, scripts: bool = True) -> Iterator[Browser]:
    """A browser with a profile of its own.

    Args:
        scripts: whether pages may run any.
    """
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--disable-gpu", "--hide-scrollbars", "--lang=en-GB"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # it refuses to run as root with one
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not scripts:
        blocked = {"profile.managed_default_content_settings.javascript": _BLOCK}
        options.add_experimental_option("prefs", blocked)
    driver = Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """Browser as the tests use it.

    Args:
        driver: of selenium.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def look(
        self,
        *,
        size: tuple[int, int] = WIDE,
        scheme: Scheme = "light",
        zone: str = "",
        dense: int = 1,
    ) -> None:
        """Set what the pages are seen on.

        Args:
            size: width and height, CSS pixels.
            scheme: what the reader prefers.
            zone: time zone; empty: the machine's.
            dense: device pixels of a CSS pixel.
        """
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": dense, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", **metrics)
        prefers = [{"name": "prefers-color-scheme", "value": scheme}]
        self.tell("Emulation.setEmulatedMedia", features=prefers)
        self.tell("Emulation.setTimezoneOverride", timezoneId=zone)

    def tell(self, command: str, **arguments: object) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page, and return its result."""
        return self.driver.execute_script(script, *arguments)

    def open(self, url: str) -> None:
        """Go to a page."""
        self.driver.get(url)

    def click(self, selector: str) -> None:
        """Click the first element that matches."""
        self.driver.find_element("css selector", selector).click()

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements("css selector", selector))

    def fill(self, field_id: str, text: str) -> None:
        """Write into a field, in place of what is there."""
        field = self.driver.find_element("id", field_id)
        field.clear()
        field.send_keys(text)

    def text(self, selector: str) -> str:
        """Wait until an element is there, as a page that was posted to may still be loading, and
        return its visible text. Scripts of the page may be blocked.
        """
        waiting = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.05)
        return waiting.until(lambda driver: driver.find_element("css selector", selector)).text

    def await_true(
        self, condition: Callable[[], object], what: str, wait_s: float = WAIT_S
    ) -> None:
        """Until it holds; fails with ``what``."""
        WebDriverWait(self.driver, wait_s, poll_frequency=0.05).until(lambda _: condition(), what)

    def complaints(self) -> list[str]:
        """Return new errors and violations of the CSP in the console."""
        logged: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in logged if entry["level"] in ("SEVERE", "WARNING")]

    def width_left_over(self) -> int:
        """CSS pixels by which the page is wider than the window."""
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.run(wide))

    def violations(self) -> list[str]:
        """Return violations of WCAG 2.2 AA and axe-core's own best practices."""
        self.run(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(
            "axe.run(document).then(arguments[0], (e) => arguments[0]({failed: String(e)}))"
        )
        assert "failed" not in found, found
        return [
            f"{one['id']}: {one['help']}: {node['html']} {node.get('failureSummary', '')}"
            for one in found["violations"]
            for node in one["nodes"]
        ]
