"""A real browser for the tests of pages: Debian's chromium, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
PATIENCE = 20_000  # milliseconds; the machine may be busy with the other tests


@contextmanager
def browser() -> Iterator[Any]:
    """Start one, or skip the test and say why."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("there is no chromium; install it, or set CHROMIUM")
    with playwright.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def page_of(launched: Any, *, offline: bool = False, **options: Any) -> Iterator[Any]:
    """A page on which nothing may go wrong, and which may ask nobody but its own server."""
    context = launched.new_context(offline=offline, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    problems: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    try:
        yield page
    finally:
        context.close()
    assert not problems
    assert all(not host or host.startswith("127.0.0.1:") for host in hosts), hosts


def wait_for_texts(found: Any, expected: list[str]) -> None:
    """Wait until the elements that a locator finds have exactly these texts.

    `all`, `count` and `all_inner_texts` do not wait: asked before a script has drawn anything,
    they answer with an empty list, and a loop over it checks nothing.
    """
    assert expected, "an empty list is what a page has before it is drawn"
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(found).to_have_text(expected, timeout=PATIENCE)


def wait_for_count(found: Any, expected: int) -> None:
    """Wait until a locator finds this many elements."""
    assert expected, "nothing is what a page has before it is drawn"
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(found).to_have_count(expected, timeout=PATIENCE)


def barriers(page: Any) -> list[str]:
    """What axe finds on the page as it is: things that some people could not read or use."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]
