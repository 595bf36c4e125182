"""Reads a page strictly."""

from __future__ import annotations

import functools
import re
from html.parser import HTMLParser

import pytest

from cli.commands.report import draw

_svg = functools.cache(draw.svg)

VOID = {"meta", "br", "img", "input", "link", "hr"}


def draw_equal_charts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each chart once in a process: the published ones are on every page.

    test_report_charts proves that equal charts are equal text.
    """
    monkeypatch.setattr(draw, "svg", _svg)


class Page(HTMLParser):
    """Checks that tags nest and attributes do not repeat, and collects what it reads."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(t for tag, t in self.texts if tag != "style"))

    def of(self, tag: str) -> list[str]:
        return [re.sub(r"\s+", " ", t) for where, t in self.texts if where == tag]
