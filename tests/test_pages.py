"""Each message to install something names the official page, or the command that installs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from operations import pages
from tests.support.checkout import ROOT, sources

TELLS_TO = re.compile(r"(?:^|[^-\w`\[])[Ii]nstall\b(?! -)")
PLACES = ("pages.", "{page}", "https://", "apt-get", "HOW_TO_INSTALL", "{command}", "{command(wanted)}")


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield every text of a module except its docstrings, with f-strings as they are written.

    A module without the word is skipped, because parsing all modules takes seconds.
    """
    written = file.read_text(encoding="utf-8")
    if "nstall" not in written:
        return
    tree = ast.parse(written)
    quiet = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            quiet |= {id(part) for part in ast.walk(node)} - {id(node)}
    for node in ast.walk(tree):
        if id(node) in quiet:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_every_hint_to_install_something_has_its_page() -> None:
    told, silent = 0, []
    # The code below node/ runs on the cluster's machines, which install packages by themselves.
    for file in sources():
        if file.is_relative_to(ROOT / "node"):
            continue
        for line, text in texts(file):
            if TELLS_TO.search(text) and len(text.split()) > 2:
                told += 1
                if not any(place in text for place in PLACES):
                    silent.append(f"{file.relative_to(ROOT)}:{line}: {text}")
    assert told >= 10
    assert silent == []


def test_the_pages_are_official() -> None:
    found = {name: value for name, value in vars(pages).items() if name.isupper()}
    hosts = {name: re.fullmatch(r"https://([a-z.]+)/\S*", value) for name, value in found.items()}
    assert {name: host[1] for name, host in hosts.items() if host} == {
        "PULUMI": "www.pulumi.com",
        "GCLOUD": "cloud.google.com",
        "AWS_CLI": "docs.aws.amazon.com",
        "SESSION_MANAGER": "docs.aws.amazon.com",
        "DOCKER": "docs.docker.com",
        "SLURM": "slurm.schedmd.com",
        "OPENSSH": "www.openssh.com",
        "PYTHON": "www.python.org",
    }
