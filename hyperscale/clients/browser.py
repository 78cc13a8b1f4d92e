"""`self.client.browser`: pages in a real Chromium, through Playwright.

An executor has one browser, which its users share. A user has a browser context of its own, with
its cookies and its cache, and one page in it; `connections` decides how long contexts are kept.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import Any, ClassVar, Literal

from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import TimeoutError as PlaywrightTimeout

from hyperscale.clients.connections import SHARED_MAX, LibraryConnection
from hyperscale.clients.library import CallRoom, Failure, LibraryClient, Place, Reply
from hyperscale.errors import InputError
from hyperscale.testing.protocols import PROTOCOLS, ServiceUrl, split_service_url
from hyperscale.testing.responses import PlaywrightResult

SCREENSHOTS_MAX = 20
"""Most screenshots of failures that an executor writes."""
_SCREENSHOT_S = 1.5

WaitUntil = Literal["commit", "domcontentloaded", "load", "networkidle"]
Script = Callable[[Page], Awaitable[object]]
"""What a user does on a page once it has loaded."""

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Runs before the scripts of every page. Entries of the past are buffered by the browser.
_OBSERVE = """
(() => {
  const seen = window.__hyperscale = {lcp: null, cls: 0, inp: null};
  const watch = (type, note, more) => {
    try {
      new PerformanceObserver((list) => list.getEntries().forEach(note))
        .observe({type, buffered: true, ...more});
    } catch (unsupported) {}
  };
  watch("largest-contentful-paint", (entry) => { seen.lcp = entry.startTime; });
  watch("layout-shift", (entry) => { if (!entry.hadRecentInput) seen.cls += entry.value; });
  watch("event", (entry) => {
    if (entry.interactionId) seen.inp = Math.max(seen.inp || 0, entry.duration);
  }, {durationThreshold: 16});
})();
"""

# A page is painted after its load event; the wait for that is not part of the page's time.
_MEASURE = """
async () => {
  const until = performance.now() + 1000;
  while (performance.now() < until && !(window.__hyperscale || {}).lcp)
    await new Promise((wake) => setTimeout(wake, 10));
  const [page] = performance.getEntriesByType("navigation");
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const parts = performance.getEntriesByType("resource");
  const seen = window.__hyperscale || {};
  return {
    ttfb: page ? page.responseStart : null,
    dom: page && page.domContentLoadedEventEnd || null,
    load: page && page.loadEventEnd || null,
    fcp: paint ? paint.startTime : null,
    lcp: seen.lcp === undefined ? null : seen.lcp,
    inp: seen.inp === undefined ? null : seen.inp,
    cls: seen.cls === undefined ? null : seen.cls,
    requests: parts.length + 1,
    bytes: parts.reduce((sum, part) => sum + part.transferSize, page ? page.transferSize : 0),
    title: document.title,
  };
}
"""

# Network errors of Chromium by the start of their names, the first match counts.
_NET_ERRORS = (
    ("ERR_NAME_", "dns"),
    ("ERR_CERT_", "tls"),
    ("ERR_SSL_", "tls"),
    ("ERR_TIMED_OUT", "timeout"),
    ("ERR_CONNECTION_TIMED_OUT", "timeout"),
    ("ERR_CONNECTION_REFUSED", "connect"),
    ("ERR_CONNECTION_FAILED", "connect"),
    ("ERR_ADDRESS_", "connect"),
    ("ERR_INTERNET_DISCONNECTED", "connect"),
    ("ERR_CONNECTION_", "reset"),
    ("ERR_EMPTY_RESPONSE", "reset"),
    ("ERR_SOCKET_", "reset"),
    ("ERR_NETWORK_", "reset"),
)


class PageStatusError(Exception):
    """The page arrived with a status of 400 or more."""

    def __init__(self, status: int, url: str) -> None:
        super().__init__(f"{url} has status {status}")
        self.status = status


class Chromium:
    """The browser of an executor, with the driver that Playwright talks to."""

    def __init__(self) -> None:
        self._playwright: Any = None
        self._browser: Browser | None = None
        self._starting: asyncio.Task[Browser] | None = None
        self._shots = count(1)

    async def browser(self) -> Browser:
        """Return the running browser; starts it if there is none, or if it has crashed."""
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="start the browser")
        try:
            return await asyncio.shield(self._starting)
        finally:
            if self._starting is not None and self._starting.done():
                self._starting = None

    async def _start(self) -> Browser:
        if self._playwright is None:
            self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=find_program(),
            # As root, Chromium starts only without its sandbox; /dev/shm is small in containers.
            args=["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])],
        )
        return self._browser

    def next_screenshot(self) -> int | None:
        """Return the number of a new screenshot; None once there are enough."""
        number = next(self._shots)
        return number if number <= SCREENSHOTS_MAX else None

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()


def find_program() -> str | None:
    """Return the path of the system's Chromium, None to use Playwright's own. Raises InputError."""
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return found
    if any((Path.home() / ".cache" / "ms-playwright").glob("chromium-*")):
        return None
    raise InputError(
        "self.client.browser needs Chromium, which is not installed here",
        hint="apt install chromium, or: playwright install chromium",
    )


class BrowserConnection(LibraryConnection):
    """A browser context and its page."""

    __slots__ = ("_context", "_leaving", "_page", "chromium")

    def __init__(self, context: BrowserContext, chromium: Chromium) -> None:
        self.chromium = chromium
        self._context = context
        self._page: Page | None = None
        self._leaving: asyncio.Task[None] | None = None  # closes a page that failed

    @property
    def is_usable(self) -> bool:
        browser = self._context.browser
        return browser is not None and browser.is_connected()

    async def page(self) -> Page:
        """Return the page of this context; it is kept from call to call until one fails."""
        if self._page is None or self._page.is_closed():
            self._page = await self._context.new_page()
        return self._page

    def retire(self, screenshot: Path | None) -> None:
        """Close the page of a failed call in the background, after a picture of it."""
        page, self._page = self._page, None
        if page is not None:
            self._leaving = asyncio.create_task(_leave(page, screenshot), name="close a page")

    async def close(self) -> None:
        if self._leaving is not None:
            await self._leaving
        await self._context.close()


async def _leave(page: Page, screenshot: Path | None) -> None:
    with contextlib.suppress(PlaywrightError, OSError, TimeoutError):  # the page may have crashed
        async with asyncio.timeout(_SCREENSHOT_S):
            if screenshot is not None:
                screenshot.parent.mkdir(parents=True, exist_ok=True)
                await page.screenshot(path=screenshot)
            await page.close()


# --- operations on a connection ------------------------------------------------------------


async def _visit(
    connection: BrowserConnection,
    url: str,
    script: Script | None,
    wait_until: WaitUntil,
    screenshots: str | None,
) -> dict[str, Any]:
    page = await connection.page()
    began_ns = perf_counter_ns()
    try:
        # The deadline is the call's; 0 turns off Playwright's own.
        reply = await page.goto(url, wait_until=wait_until, timeout=0)
        status = reply.status if reply is not None else 0
        if status >= 400:
            raise PageStatusError(status, url)
        if script is not None:
            await script(page)
        took_ns = perf_counter_ns() - began_ns
        measured: dict[str, Any] = await page.evaluate(_MEASURE)
    except BaseException:
        number = connection.chromium.next_screenshot() if screenshots is not None else None
        name = f"{os.getpid()}-{number}.png"
        connection.retire(Path(screenshots, name) if screenshots and number is not None else None)
        raise
    return {**measured, "status": status, "url": page.url, "took_ns": took_ns}


async def _version(connection: BrowserConnection, url: str) -> dict[str, Any]:
    measured = await _visit(connection, url, None, "load", None)
    browser = await connection.chromium.browser()
    return {**measured, "browser": browser.version}


def _visited(value: dict[str, Any], _took_ns: int, *times: Any) -> PlaywrightResult:
    response = PlaywrightResult(value, value.pop("took_ns"), *times)
    response.bytes_received = int(value["bytes"])
    return response


class BrowserClient(LibraryClient):
    """The browser of one virtual user."""

    __slots__ = ()
    protocol = "browser"
    connect_timeout_s: ClassVar[float] = 60.0  # it may have to start Chromium again

    def visit(
        self,
        url: str,
        script: Script | None = None,
        *,
        wait_until: WaitUntil = "load",
        screenshots: str | None = None,
        timeout: str | float | None = None,
    ) -> Reply[PlaywrightResult]:
        """Open a page and wait until it has loaded; then run `await script(page)`.

        `script` gets Playwright's `Page` and does what a person would do there; its time counts.
        `wait_until` is `commit`, `domcontentloaded`, `load` or `networkidle`. With `screenshots`, a
        directory, failed calls leave a picture of the page there, 20 per executor at most.
        """
        args = (url, script, wait_until, screenshots)
        return self._call(self._place(url), _visit, args, _visited, timeout)

    async def ping(self, url: str, *, timeout: str | float | None = None) -> PlaywrightResult:
        """Open a page; the value describes it and the browser."""
        response = await self._call(self._place(url), _version, (url,), _visited, timeout)
        seen = response.value
        response.value = (
            f"{seen['title'] or 'a page without title'}, status {seen['status']}, "
            f"{seen['requests']} requests, in Chromium {seen['browser']}"
        )
        return response

    @classmethod
    async def prepare(cls, room: CallRoom) -> None:
        await _chromium_of(room).browser()

    def _place(self, url: str, options: Any = None, *, pool: int = SHARED_MAX) -> Place:
        """Return the place of a page: all pages share the contexts of the user."""
        parts = split_service_url(url, PROTOCOLS[self.protocol])
        home = self._places.get(self.protocol)
        if home is None:
            home = self._places[self.protocol] = Place(parts, options, self._new_pool(pool))
        return Place(parts, options, home.pool)

    def _describe(self, operation: Any, args: tuple[Any, ...]) -> str:
        return "visit"

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        chromium = _chromium_of(self._room)
        browser = await chromium.browser()
        making = asyncio.create_task(_new_context(browser), name="open a browser context")
        try:
            return BrowserConnection(await asyncio.shield(making), chromium)
        except asyncio.CancelledError:
            self._room.reaper.spawn(_discard(making))
            raise

    def _classify(self, error: BaseException) -> Failure | None:
        match error:
            case PageStatusError():
                return Failure("status", str(error), str(error.status))
            case PlaywrightTimeout():
                return Failure("timeout", _first_line(error))
            case PlaywrightError():
                detail = _first_line(error)
                for name, kind in _NET_ERRORS:
                    if f"net::{name}" in detail:
                        return Failure(kind, detail, name)
                is_gone = "closed" in detail or "crash" in detail
                return Failure("reset" if is_gone else "protocol", detail)
        return None


async def _new_context(browser: Browser) -> BrowserContext:
    context = await browser.new_context(ignore_https_errors=False)
    await context.add_init_script(_OBSERVE)
    return context


async def _discard(making: "asyncio.Task[BrowserContext]") -> None:
    """Close a context whose caller has stopped waiting."""
    with contextlib.suppress(PlaywrightError):
        await (await making).close()


def _chromium_of(room: CallRoom) -> Chromium:
    chromium = room.kept.get("browser")
    if not isinstance(chromium, Chromium):
        chromium = room.kept["browser"] = Chromium()
        room.closers.append(chromium.close)
    return chromium


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


CLIENT = BrowserClient
