"""The page in a real browser: it opens from disk, shows its pictures, and nothing goes wrong."""

from __future__ import annotations

import shutil
import subprocess

import cv2
import numpy as np
import pytest

from penstock.pipeline.commands import main

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not CHROMIUM, reason="needs chromium on the path"),
]

# Put into a copy of the page, whose policy allows no script of its own.
PROBE = """<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)), true);
addEventListener("securitypolicyviolation", event => errors.push(event.violatedDirective));
addEventListener("load", () => {
  const images = [...document.images];
  document.body.setAttribute("data-found", JSON.stringify({
    images: images.length,
    loaded: images.filter(image => image.complete && image.naturalWidth > 0).length,
    others: performance.getEntriesByType("resource").map(e => e.name)
      .filter(name => !name.startsWith("data:")),
    overflow: document.documentElement.scrollWidth - innerWidth,
    title: document.title,
    errors: errors,
  }));
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory, data_dir):
    path = tmp_path_factory.mktemp("preview") / "ж 1.png"
    given = ["preview", "task=detection", f"data_dir={data_dir}", f"preview.path={path}"]
    assert main([*given, "preview.samples=3", "preview.epochs=2"]) == 0
    return path.with_suffix(".html")


def browse(file, *options):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={file.parent / 'profile'}", "--virtual-time-budget=5000"]
    return subprocess.run(
        [*command, *options, file.as_uri()], capture_output=True, text=True, timeout=250, check=True
    )


@pytest.mark.parametrize("width", [500, 1800])
def test_everything_is_shown_and_nothing_is_loaded(page, width):
    import html
    import json
    import re

    text = page.read_text(encoding="utf-8")
    allowed = text.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    assert allowed != text
    copy = page.with_name(f"probe-{width}.html")
    copy.write_text(allowed.replace("<title>", PROBE + "<title>", 1), encoding="utf-8")
    dom = browse(copy, "--dump-dom", f"--window-size={width},900").stdout
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', dom).group(1)))
    assert found["images"] == found["loaded"] > 3 * 3
    assert found["errors"] == [] and found["others"] == []
    assert found["overflow"] <= 0
    assert found["title"].startswith("demo, train: 3 samples")


def test_pixels_of_a_picture_arrive_on_the_screen(page):
    shot = page.with_name("shot.png")
    browse(page, f"--screenshot={shot}", "--window-size=1300,2400", "--force-device-scale-factor=1")
    screen = cv2.imread(str(shot))
    sheet = cv2.imread(str(page.with_suffix(".png")))
    # The first picture of the sheet, found again on the screen.
    top = next(y for y in range(50, 140) if sheet[y, 24:100].std() > 8)
    part = sheet[top + 20 : top + 60, 34:74]
    best = cv2.matchTemplate(screen, part, cv2.TM_SQDIFF).min()
    assert best / part.size < 1
    assert np.ptp(screen) > 200
