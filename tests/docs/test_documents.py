"""The documentation's form: its blocks of commands, its links, its pictures."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.main import get_command

from cli.main import app, commands
from tests.support.checkout import CODE, ROOT
from tests.support.documents import Block, blocks, cluster_words, pages

PAGES = [*pages(), ROOT / "CHANGELOG.md"]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
    broken = []
    for path, anchor in links:
        if path.startswith(("https://", "http://")):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_merge_is_left_half_done(page: Path) -> None:
    """Conflict markers are Markdown that nothing refuses."""
    assert not re.search(r"^(<{7}|>{7}) ", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_a_link_to_a_heading_that_is_gone_would_be_found() -> None:
    assert {"a-limit-on-what-a-cluster-may-cost", "what-up-does"} <= anchors(ROOT / "docs" / "commands.md")
    assert "a-heading-that-nobody-wrote" not in anchors(ROOT / "docs" / "commands.md")


@pytest.mark.parametrize(("page", "most"), [("README.md", 1000), ("docs/troubleshooting.md", 2750)])
def test_a_page_that_is_read_in_a_hurry_is_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= most


FOLDERS = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."))
"""Each folder of the checkout."""


def gone(text: str) -> list[str]:
    """Return the files that a page names, as paths or to `python -m`, and that do not exist."""
    files = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text)
    modules = re.findall(rf"`(?:python -m )?((?:{FOLDERS})(?:\.[a-z_]+)+)(?: [^`]+)?`", text)
    names = [module.replace(".", "/") for module in modules if module not in CODES]
    missing = [name for name in names if not ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file())]
    return [name for name in files if not (ROOT / name).exists()] + missing


CODES = set(
    re.findall(r"^\| `([\w.-]+)` \|", (ROOT / "docs" / "reference" / "mistakes.md").read_text(), re.MULTILINE)
)
"""The codes of mistakes, which look like modules."""


@pytest.mark.parametrize("page", pages(), ids=[str(page.relative_to(ROOT)) for page in pages()])
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    """No page names a module that was renamed."""
    assert gone(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "name",
    ["operations/ssh.py", "component/schema.py", "tools/generate.py", "node/design/model.py", "cli/main.py"],
)
def test_a_file_that_was_renamed_would_be_found(name: str) -> None:
    module = name.removesuffix(".py").replace("/", ".")
    assert gone(f"`{name}`, `{module}`, `python -m {module} --check`, `component.region`") == []
    renamed = name.replace(".py", "_2.py")
    assert gone(f"`{renamed}`") == [renamed]
    assert gone(f"`python -m {module}_b`") == [f"{name.removesuffix('.py')}_b"]


@pytest.mark.parametrize("picture", PICTURES, ids=[p.name for p in PICTURES])
def test_a_picture_is_used_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "url(http" not in text
    assert "href" not in text
    assert any(picture.name in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_pages_that_messages_and_stack_files_name_exist() -> None:
    """A message leads to a page, and may name a heading of it (`docs/aws.md#ordinary-users`)."""
    code = [file for folder in CODE for file in (ROOT / folder).rglob("*.py")]
    files = [*code, *ROOT.glob("*.yaml"), *(ROOT / ".github").rglob("*.yml")]
    link = r"(?<![\w/.])(?:\.\./blob/main/)?(docs/[\w/]+\.md)(?:#([\w-]+))?"
    named = {
        (file.name, *one) for file in files for one in re.findall(link, file.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    gone = [
        (where, page, anchor)
        for where, page, anchor in named
        if not (ROOT / page).is_file() or (anchor and anchor not in anchors(ROOT / page))
    ]
    assert gone == []


def test_the_index_leads_to_every_page_of_users_and_references() -> None:
    """Pages for those who change the project are found from the page of its architecture, too."""
    folder = ROOT / "docs"
    shown = re.findall(r"\]\(([\w/.-]+\.md)", (folder / "README.md").read_text(encoding="utf-8"))
    found = [*folder.glob("*.md"), *folder.glob("reference/*.md"), *folder.glob("internals/*.md")]
    assert {str(page.relative_to(folder)) for page in found} - set(shown) == {"README.md"}


def test_the_decisions_are_listed_by_their_days() -> None:
    folder = ROOT / "docs" / "internals"
    text = (folder / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- ([\d-]{10}): \[(.*)\]\(decisions/(.*)\)$", text, re.MULTILINE)
    pages = sorted((folder / "decisions").glob("*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    assert listed == [(page.name[:10], title, page.name) for page, title in zip(pages, titles, strict=True)]


def test_a_terminal_is_drawn_as_it_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "pictures")
    record = importlib.import_module("record")

    text = record.shown(["printf 'one\\rtwo\\033[31mred\\033[0m\\n'", "test -t 1; echo here"], tmp_path)
    assert text.plain.splitlines()[1:] == ["twored", "$ echo here", "here"]
    red = [text.plain[span.start : span.end] for span in text.spans if str(span.style) == "red"]
    assert "".join(red) == "red"
    picture = record.draw(text, "a title")
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "twored" not in picture, "each colour is a text of its own"
    assert record.draw(text, "a title") == picture
    with pytest.raises(RuntimeError, match="ended with status 3"):
        record.shown(["exit 3"], tmp_path)
    sys.modules.pop("record")


def test_a_stack_is_made_before_it_is_brought_up() -> None:
    """`pulumi up --stack S` finds no stack named S until somebody has said `pulumi stack init S`."""
    shown = [block for page in PAGES for block in blocks(page) if "pulumi up" in " ".join(block.commands)]
    assert {block.where.partition(":")[0] for block in shown} >= {"docs/commands.md", "docs/consuming.md"}
    for block in shown:
        made: set[str] = set()
        for command in block.commands:
            if found := re.match(r"pulumi stack init (\S+)", command):
                made.add(found[1])
            if command.startswith("pulumi up"):
                named = re.search(r"--stack (\S+)", command)
                assert named[1] in made if named else made, f"{block.where}: {command}"


@functools.cache
def without_effect() -> Any:
    """Return the command line, with commands that do nothing."""

    def disarm(command: Any) -> None:
        for each in getattr(command, "commands", {}).values():
            disarm(each)
        if not hasattr(command, "commands"):
            command.callback = lambda **_: None

    commands()  # adds the groups to the app; what it returns is everybody's, so here is another one
    command = get_command(app)
    disarm(command)
    return command


def takes(words: list[str]) -> bool:
    """Return whether `./cluster` takes these words. No command runs."""
    with pytest.raises(SystemExit) as ended:
        without_effect()(list(words), "cluster")
    return ended.value.code == 0


@pytest.mark.parametrize("page", pages(), ids=[str(page.relative_to(ROOT)) for page in pages()])
def test_cluster_takes_every_command_that_a_page_shows(page: Path) -> None:
    wrong = [
        f"{block.where}: {command}"
        for block in blocks(page)
        for command in block.commands
        if not all(takes(words) for words in cluster_words(command))
    ]
    assert wrong == []


def test_a_command_that_cluster_does_not_take_would_be_found() -> None:
    command = "until ./cluster exec -- wc -l | grep .; do ./cluster chaos kill $(./cluster status --x); done"
    found = list(cluster_words(command))
    assert found == [["exec", "--", "wc", "-l"], ["chaos", "kill", "WORD"], ["status", "--x"]]
    assert [takes(words) for words in found] == [True, True, False]
    for wrong in (["chaos", "kill"], ["chaos", "preempt", "n", "--notice", "never"], ["no-such"]):
        assert not takes(wrong)


def test_the_readme_begins_with_the_two_commands() -> None:
    first, *_ = blocks(ROOT / "README.md")
    assert first.commands[-2:] == ("./cluster up", "./cluster down")


def test_a_block_that_is_not_run_says_what_it_needs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\n# all of it\ntrue  # a word\necho 'a # b' \\\n  c\n```\n\n"
        "<!-- needs: account -->\n```sh\nfalse\n```\n"
    )
    one, two = blocks(page, tmp_path)
    assert one == Block("page.md:1", None, ("true", "echo 'a # b'    c"))
    assert (two.needs, two.commands) == ("account", ("false",))
    page.write_text("<!-- needs: luck -->\n```sh\ntrue\n```\n")
    with pytest.raises(ValueError, match=r"page.md:2: needs 'luck'"):
        blocks(page, tmp_path)
    page.write_text("```\ntrue\n```\n")
    with pytest.raises(ValueError, match="language ''"):
        blocks(page, tmp_path)
