"""What people see: Dagster's real pages in a real Chromium, after a run on the stand-in for the resource."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import dagster as dg
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from dagster_slurm_tests.cluster.packages import install
from dagster_slurm_tests.dagster.browser_definitions import defs

pytestmark = pytest.mark.timeout(600)
_SETTINGS = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"


@attrs.frozen
class Site:
    """A webserver with one finished run."""

    url: str
    run_id: str


def chromium() -> str:
    """Path of Chromium; installed on Debian when the tests run as root."""
    found = shutil.which("chromium")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        install(["chromium", "fonts-dejavu-core"])
        found = shutil.which("chromium")
    if found is None:
        pytest.fail("The browser tests need Chromium. Run as root: apt-get install chromium fonts-dejavu-core")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text(_SETTINGS)
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        result = defs.resolve_job_def("scores_job").execute_in_process(instance=instance)
    assert result.success
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port)]
    log = home / "webserver.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "-m", "dagster_slurm_tests.dagster.browser_definitions"],
            env={**os.environ, "DAGSTER_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process, log)
        yield Site(url, result.run_id)
    finally:
        process.terminate()
        process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    # One for all tests: the pages' programs are loaded once.
    opened = browser.new_page(viewport={"width": 1500, "height": 1100})
    opened.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    yield opened
    opened.close()


def shown_whole(picture: Locator) -> bool:
    """Whether a picture was loaded and nothing around it cuts its sides."""
    whole: bool = picture.evaluate(
        """picture => {
            const own = picture.getBoundingClientRect();
            if (!picture.complete || picture.naturalWidth === 0 || own.width === 0) return false;
            for (let around = picture.parentElement; around; around = around.parentElement) {
                const cuts = getComputedStyle(around).overflowX !== "visible";
                const edge = around.getBoundingClientRect();
                if (cuts && (own.right > edge.right + 1 || own.left < edge.left - 1)) return false;
            }
            return true;
        }"""
    )
    return whole


def test_the_asset_s_page_shows_policy_numbers_and_timeline(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/assets/scores")
    page.get_by_placeholder("Filter metadata keys").fill("slurm/")
    expect(page.get_by_text("one_for_ten: One worker for ten open items.")).to_be_visible()
    expect(page.get_by_text("slurm/gpu_hours_used")).to_be_visible()
    small = page.get_by_alt_text("timeline").first
    small.scroll_into_view_if_needed()
    expect(small).to_be_visible()
    assert shown_whole(small)
    expect(page.get_by_text("Below: red wanted, grey live; top 4.").first).to_be_visible()
    row = page.locator("tr", has_text="slurm/timeline_full")
    row.get_by_text("[Show Markdown]").click()
    full = page.get_by_role("dialog").get_by_alt_text("timeline")
    expect(full).to_be_visible()
    assert shown_whole(full)


def test_the_numbers_of_the_ticks_are_drawn_over_time(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/assets/scores")
    page.get_by_text("Plots", exact=True).click()
    for name in ("slurm/live", "slurm/ready", "slurm/wanted", "slurm/granted_gpus"):
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()


def test_a_check_s_page_shows_its_sentence_and_the_allocations(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/assets/scores?view=checks")
    page.get_by_text("slurm_session_healthy").first.click()
    sentence = "Everything is observed, the head is ready, and nothing waits for long or fails."
    expect(page.get_by_text(sentence).first).to_be_visible()
    for text in ("Passed", "RUNNING", "head"):
        expect(page.get_by_text(text, exact=True).first).to_be_visible()


def test_the_run_s_page_shows_each_tick_with_its_table(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs/{site.run_id}")
    page.get_by_placeholder("Filter…").fill("The policy wants 4")
    expect(page.get_by_text("The policy wants 4 worker allocations of 'scores'.").first).to_be_visible()
    expect(page.get_by_text("slurm/allocations").first).to_be_visible()
