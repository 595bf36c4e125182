"""The report's page: self-contained, well-formed, readable, and honest about names and figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.commands.report import page, words
from cli.commands.report.runs import published_runs
from cli.commands.report.series import group
from tests.support.report_reader import Page, draw_equal_charts_once
from tests.support.report_records import local, record, runs
from tests.support.wide import wide

draw_once = pytest.fixture(autouse=True)(draw_equal_charts_once)
MADE = datetime(2026, 11, 21, 14, 11, tzinfo=UTC)
THEIRS = published_runs()


def rendered(*stacks: tuple[str, list[dict[str, Any]]], problems: tuple[str, ...] = ()) -> Page:
    ours = [run for stack, records in stacks for run in runs(*records, stack=stack)]
    return Page(page.render([s for s, _ in stacks] or ["local"], ours, THEIRS, problems, MADE))


MIXED = (
    ("gcp-gpu", [record(n, 24 / n, gpus_per_node=1, start_latency_seconds=90.0) for n in (1, 1, 2, 8)]),
    ("local", [local(n, 60.0 - n) for n in (1, 2)]),
)


# --- the page --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed() -> Page:
    return rendered(*MIXED)


def test_it_is_self_contained(mixed: Page) -> None:
    assert not {tag for tag, _ in mixed.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "image",
    }
    for tag, attributes in mixed.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "data", "action", "poster", "srcset"):
                assert (value or "").startswith("#"), f"{tag} loads {value}"
            assert not name.startswith("on")
            if name != "xmlns":
                assert "http" not in (value or "")
    (style,) = mixed.of("style")
    assert "url(" not in style
    assert "@import" not in style


def test_its_ids_are_unique_and_references_lead_somewhere(mixed: Page) -> None:
    assert len(mixed.ids) == len(set(mixed.ids)) > 100
    for _, attributes in mixed.tags:
        for name in ("aria-labelledby", "href"):
            for reference in (attributes.get(name) or "").split():
                assert reference.removeprefix("#") in mixed.ids
        for reference in re.findall(r"url\(#([^)]+)\)", " ".join(v or "" for v in attributes.values())):
            assert reference in mixed.ids


def test_every_colour_of_the_pictures_is_the_pages(mixed: Page) -> None:
    used = {m for _, a in mixed.tags for v in a.values() for m in re.findall(r"var\(--([\w-]+)\)", v or "")}
    (style,) = mixed.of("style")
    blocks = re.findall(r":root \{(.*?)\}", style)
    assert len(blocks) == 3  # light, dark, print
    for block in blocks:
        assert used <= set(re.findall(r"--([\w-]+):", block))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as the accessibility guidelines (WCAG 2) define it."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_have_contrast_in_light_in_dark_and_in_print(mixed: Page) -> None:
    (style,) = mixed.of("style")
    for block in re.findall(r":root \{(.*?)\}", style):
        colours = dict(re.findall(r"--([\w-]+): (#\w+)", block))
        for name in ("ink", "muted", "s1", "s2", "s3", "s4", "s5", "s6"):
            assert contrast(colours[name], colours["surface"]) >= 4.5, name  # text
        assert contrast(colours["muted"], colours["tint"]) >= 4.5
        assert contrast(colours["pub"], colours["surface"]) >= 3  # lines


def test_the_page_says_which_stacks_it_shows(mixed: Page) -> None:
    assert mixed.of("h1") == ["Runs of stacks gcp-gpu and local beside the published ones"]
    assert "stacks gcp-gpu, local · 2026-11-21 14:11 UTC" in mixed.text
    assert mixed.of("h2") == [
        *("CPU nodes", "GPU nodes", "Epoch by epoch"),
        *("Our series", "Our runs", "Published runs", "Machines", "What to know"),
    ]
    for said in ("tensorflow 2.21.0", "/device:CPU:0", "fd54350", "393.793 s", "digits-synthetic"):
        assert said in mixed.text
    # Every published row.
    assert sum(text.endswith(" s") and len(text.split(".")[-1]) == 5 for text in mixed.of("td")) == 41


def test_the_machines_are_described_as_in_the_articles() -> None:
    """m4.large: 2 vCPUs, 8 GiB, 450 Mbps, Moderate, $0.12; local machines are groups of processes."""
    cells = rendered(("local", [local(1)])).of("td")
    start = cells.index("m4.large")
    assert [cell.replace(words.SPACE, " ") for cell in cells[start : start + 7]] == [
        "m4.large", "2", "8 GiB", "450 Mbit/s", "Moderate", "Intel, 2.4 GHz", "$0.120",
    ]  # fmt: skip
    start = cells.index("p3.2xlarge")
    assert cells[start + 1 : start + 7] == ["–", "–", "–", "–", "–", "$3.82"], "EC2 has it no more"
    assert "local.small" not in cells


def test_only_kinds_of_nodes_with_runs_of_ours_are_drawn() -> None:
    assert rendered(("local", [local(1)])).of("h2")[0] == "CPU nodes"
    assert "GPU nodes" not in rendered(("local", [local(1)])).of("h2")
    assert rendered(("g", [record(1, gpus_per_node=1)])).of("h2")[0] == "GPU nodes"
    assert rendered().of("h2")[:3] == ["CPU nodes", "GPU nodes", "Published runs"]


def test_strange_names_are_text() -> None:
    evil = '<b>"x"</b><script>alert(1)</script>&amp;'
    strange = record(1, partition=evil, machine=evil, devices=[evil], versions={evil: evil})
    # A record with these is not valid. Whatever comes to the page is a page's text all the same.
    strange |= {"job_id": evil, "devices": [evil, "\x01\ud800"], "versions": {evil: "\x00"}}
    found = rendered((evil, [strange, record(2, machine=evil)]), problems=(evil,))
    assert not {tag for tag, _ in found.tags} & {"b0", "script"}
    assert "<script>alert(1)</script>" in found.text
    assert evil in found.text


def test_results_of_another_checkout_say_whose_they_are() -> None:
    mine = runs(local(1, 60.0), checkout="a/stacks", several=True)
    other = runs(local(1, 20.0), checkout="b/stacks", several=True)
    old = runs(local(1, 90.0), several=True)
    found = Page(page.render(["test"], [*mine, *other, *old], THEIRS, [], MADE)).text
    assert "Runs 3 of 1 stack, from 3 checkouts" in found
    assert len(group([*mine, *other, *old])) == 3, "nobody's times are averaged with another's"
    for label in ("checkout a/stacks", "checkout b/stacks", "unknown checkout"):
        assert found.count(label) >= 3, "in the legend, the series and the runs"
    alone = Page(page.render(["test"], runs(local(1), checkout="stacks"), THEIRS, [], MADE)).text
    assert "checkout stacks" not in alone


def test_the_figures_of_the_head() -> None:
    paid = [record(1, cost_usd=0.5, restarts=2), record(2, cost_usd=None, start_latency_seconds=3.0)]
    head = rendered(("a", paid)).text
    for said in ("Runs 2 of 1 stack",
                 "Cost ≥ $0.500 at least: nodes of 1 run; price of n1-standard-2 unknown, 1 run",
                 "Restarts 2 in 1 run",
                 "median of 2; worst 3.00 s"):  # fmt: skip
        assert said in head
    assert "Cost $0.00 local machines cost nothing" in rendered(("l", [local(1, cost_usd=2.0)])).text


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --allow-file-access-from-files --dump-dom"
)
# Headless windows have a least width; a frame has none.
FRAME = """
<iframe id="f" src="report.html" style="width:WIDTHpx;height:800px;border:0"></iframe>
<script>
onload = () => {
  const page = document.getElementById("f").contentDocument;
  let least = 99, cut = 0;
  for (const chart of page.querySelectorAll("svg.chart")) {
    const right = chart.getBoundingClientRect().right;
    for (const text of chart.querySelectorAll("text")) {
      const size = parseFloat(page.defaultView.getComputedStyle(text).fontSize);
      least = Math.min(least, size * text.getScreenCTM().a);
      cut += text.getBoundingClientRect().right > right + 1;
    }
  }
  const table = page.querySelector('[aria-label="Our runs"]');
  const details = [...table.querySelectorAll(".detail p")].map((p) => p.getBoundingClientRect().right);
  const whole = Math.max(...details) <= table.getBoundingClientRect().right;
  document.body.textContent = JSON.stringify({
    wide: page.documentElement.scrollWidth, least, cut, whole,
    hidden: table.scrollWidth - table.clientWidth,
    scrolls: page.defaultView.getComputedStyle(table).overflowX,
    shadow: page.defaultView.getComputedStyle(table).backgroundAttachment.includes("local"),
  });
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [360, *wide(800), 1200])
def test_in_a_browser_nothing_is_cut_or_too_small(tmp_path: Path, width: int) -> None:
    ours = [run for stack, records in MIXED for run in runs(*records, stack=stack)]
    (tmp_path / "report.html").write_text(page.render([s for s, _ in MIXED], ours, THEIRS, [], MADE))
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    done = subprocess.run(
        [
            str(BROWSER),
            *FLAGS.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"file://{tmp_path}/frame.html",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    match = re.search(r"\{.*\}", done.stdout)
    assert match is not None, done.stdout
    found = json.loads(match.group())
    assert found["wide"] == width  # the page does not scroll sideways
    assert found["cut"] == 0
    assert found["least"] >= 10  # pixels
    # The table of our runs fits if there is room. Otherwise it scrolls, and a shadow shows that.
    assert found["hidden"] <= 0 or width < 1200
    assert (found["scrolls"], found["shadow"]) == ("auto", True)
    assert found["whole"], "what was trained on what is read without scrolling"
