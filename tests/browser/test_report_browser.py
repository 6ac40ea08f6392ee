"""The report in a real browser: its content policy lets its own script run, and the gallery sorts."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "unit"))
from reporting_runs import picture_run

from genmeter.report.html import write_report

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt-get install chromium)")

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# What a reader does: choose the first metric, look, turn the order round, look again.
READER = """
const order = () => [...document.getElementById("shots").children].map((shot) => shot.dataset.m0 ?? "none").join(" ");
const key = document.getElementById("sort-key");
key.selectedIndex = 1;
key.dispatchEvent(new Event("change"));
document.body.dataset.first = order();
document.getElementById("sort-turn").click();
document.body.dataset.turned = order();
"""


def opened(page: str, folder: Path) -> str:
    """The page's DOM after its scripts have run."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    assert BROWSER is not None
    words = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_gallery_sorts_by_a_metric_and_back(tmp_path: Path) -> None:
    page = write_report(picture_run(tmp_path / "run", 40)).read_text(encoding="utf-8")
    # The reader's clicks are a script too; it is let in by its own digest, so that the report's policy stays in force.
    digest = base64.b64encode(hashlib.sha256(READER.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ").replace(
        "</body>", f"<script>{READER}</script></body>"
    )
    dom = opened(page, tmp_path)
    first, turned = (re.search(rf'data-{name}="([^"]*)"', dom) for name in ("first", "turned"))
    assert first is not None, "the report's script did not run"
    assert turned is not None
    for found, sign in ((first[1], -1), (turned[1], 1)):  # of a distance the largest is the worst and comes first
        values = found.split(" ")
        scores = [float(value) * sign for value in values if value != "none"]
        assert len(scores) > 20
        assert scores == sorted(scores)
        assert values[len(scores) :] == ["none"] * (len(values) - len(scores)), "without a score: at the end"
