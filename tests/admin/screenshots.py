"""The pictures of ``docs/api.md``, taken of a real node with made-up orders:
``python -m tests.admin.screenshots``.
"""

from __future__ import annotations

import io
import math
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from PIL import Image

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from delay_devtools.service import ServiceProcess
from tests.admin.browser import PHONE, Browser, Scheme, chromium

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
BYTES_MAX: Final = 150_000
TOPIC: Final = "delay_topic_any"
TARGETS: Final = ("orders", "reminders", "invoices")
PARTITIONS: Final = 4
PENDING: Final = 48_000
COLOURS: Final = 128
SHOWN: Final = "order-20417"
# Time in which records are delivered to every target, before the first picture.
DELIVERING_S: Final = 30
WIDE: Final = (1200, 1010)


class Shop:
    """Writes delayed records as a shop would.

    Args:
        bootstrap: the broker.
    """

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._rng = random.Random(8)
        self._number = 20_500

    def write(self, delay_ms: int, target: str, *, number: int | None = None) -> None:
        """One record."""
        self._number += 1
        order = self._number if number is None else number
        name = f"order-{order}"
        total = self._rng.randrange(500, 25_000) / 100
        self._producer.produce(
            TOPIC,
            f'{{"order": {order}, "customer": {order % 997}, "total": {total}, "currency": "EUR"}}',
            name,
            order % PARTITIONS,
            headers=[
                ("delay-after", str(delay_ms)),
                ("delay-target-topic", target),
                ("delay-id", name),
                ("content-type", "application/json"),
            ],
        )
        self._producer.poll(0)

    def fill(self) -> None:
        """What is pending: less and less as time goes on, more at every quarter of an hour."""
        quarter_ms = 900_000
        now_ms = time.time_ns() // 1_000_000
        for _ in range(PENDING):
            delay_ms = int(self._rng.expovariate(1 / 3_000_000)) + 20_000
            if self._rng.random() < 0.2:
                due_ms = (now_ms + delay_ms) // quarter_ms * quarter_ms + quarter_ms
                delay_ms = due_ms - now_ms + int(self._rng.expovariate(1 / 40_000))
            self.write(delay_ms, self._rng.choice(TARGETS))
        self.write(3_000_000, "orders", number=20_417)
        self._producer.flush(60)

    def trade(self, stopping: threading.Event) -> None:
        """What comes and goes, in waves, until it is to stop."""
        while not stopping.wait(0.1):
            wave = 9 + 5 * math.sin(time.monotonic() / 25) + self._rng.random() * 3
            for _ in range(int(wave)):
                self.write(self._rng.randrange(500, 9_000), self._rng.choice(TARGETS))


@contextmanager
def site() -> Iterator[tuple[str, Shop]]:
    """A node, its address, and whoever writes to it."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder, EmbeddedCluster(1, 0) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in TARGETS])
        for future in made.values():
            future.result(30)
        sets = [
            f"kafka.bootstrap={cluster.bootstrap}",
            f"topics.partitions={PARTITIONS}",
            f"targets.default.allow={','.join(TARGETS)}",
            f"node.state_dir={folder}/state",
            "node.node_id=delay-1",
            "node.workers=2",
            f"admin.listen=127.0.0.1:{port}",
            "metrics.listen=127.0.0.1:0",
        ]
        with ServiceProcess(sets, Path(folder) / "service.log") as service:
            service.wait_serving(PARTITIONS)
            yield f"http://127.0.0.1:{port}", Shop(cluster.bootstrap)
            service.stop()


def take(
    browser: Browser, url: str, name: str, size: tuple[int, int] = WIDE, scheme: Scheme = "light"
) -> None:
    """One picture, small enough for a repository."""
    browser.look(size=size, scheme=scheme, zone="Europe/Berlin", dense=2)
    browser.open(url)
    polled = "return performance.getEntriesByType('resource').length > 5"
    browser.await_true(lambda: browser.run(polled), "live figures")
    save(browser, name)


def save(browser: Browser, name: str) -> None:
    """What is to be seen now."""
    shot = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    few = shot.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    path = FOLDER / f"{name}.png"
    few.save(path, optimize=True)
    assert path.stat().st_size < BYTES_MAX, f"{name}: {path.stat().st_size} bytes"


def main() -> None:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    stopping = threading.Event()
    with site() as (url, shop), chromium() as browser:
        shop.fill()
        trading = threading.Thread(target=shop.trade, args=[stopping], daemon=True)
        trading.start()
        stopping.wait(DELIVERING_S)
        take(browser, url, "page-overview-light")
        take(browser, url, "page-overview-dark", scheme="dark")
        search = f"{url}/pending?from=%2B10m&to=%2B1h&target={quote('orders')}"
        take(browser, search, "page-pending", (1200, 860))
        take(browser, f"{url}/pending?id={SHOWN}", "page-record", (1200, 860))
        browser.click('[data-change="cancel"]')
        save(browser, "page-cancel")
        take(browser, url, "page-phone", PHONE)
        stopping.set()
        trading.join()


if __name__ == "__main__":
    main()
