"""Figures as people read them."""

from __future__ import annotations

from infra.report.series import Series

SPACE = "\N{NO-BREAK SPACE}"


def seconds(value: float) -> str:
    """Three digits: 394 s, 24.0 s, 3.20 s, 0.45 s; thousands are separated."""
    if value >= 99.95:
        return f"{value:,.0f}{SPACE}s"
    return f"{value:.{1 if value >= 9.995 else 2}f}{SPACE}s"


def ratio(value: float) -> str:
    """Two or three digits: 12×, 3.9×, 0.45×."""
    if value >= 9.95:
        return f"{value:,.0f}×"
    return f"{value:.1f}×" if value >= 0.995 else f"{value:.2f}×"


def factor(value: float) -> str:
    """A ratio in a table: 3.87×."""
    return f"{value:,.2f}×"


def cents(value: float) -> str:
    """US cents: 1,250 ¢, 4.1 ¢, 0.50 ¢, 0.018 ¢."""
    if value == 0:
        return f"0{SPACE}¢"
    if value >= 9.95:
        return f"{value:,.0f}{SPACE}¢"
    return f"{value:.{1 if value >= 0.995 else 2 if value >= 0.1 else 3}f}{SPACE}¢"


def usd(value: float) -> str:
    """Dollars to the cent, what is less with three digits or two: $1,204.50, $0.043, $0.0036."""
    if value >= 0.9995 or value == 0:
        return f"${value:,.2f}"
    return f"${value:.3f}" if value >= 0.00995 else f"${value:.2g}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def share(value: float) -> str:
    return f"{100 * value:,.0f}{SPACE}%"


def fraction(value: float) -> str:
    """Loss and accuracy, with the articles' digits: 0.9892."""
    return f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.3g}"


def count(number: int, what: str) -> str:
    """1 node, 2 nodes, 1,200 runs."""
    return f"{number:,}{SPACE}{what}{'' if number == 1 else 's'}"


def listed(items: list[str]) -> str:
    """a, b and c"""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def when(kept_at: str) -> str:
    """2026-11-21 14:11 UTC, from 20261121T141109Z; anything else as it is."""
    digits = kept_at.replace("T", "").removesuffix("Z")
    if len(digits) != 14 or not digits.isdecimal():
        return kept_at
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {digits[8:10]}:{digits[10:12]} UTC"


def published_label(series: Series) -> str:
    """A published series in a word or two: c4.2xlarge, n1 + 2 V100, p3.2xlarge."""
    run = series.one
    name = run.machine or ""
    # Google's GPUs are attached to a machine; those of other clouds are in its name.
    if run.gpu and name.startswith("n1-"):
        return f"n1 + {run.gpus_per_node} {(run.accelerator or 'GPU').upper()}"
    return name


def recipe(series: Series) -> str:
    """What was trained, and on what."""
    k = series.key
    parts = [k.machine or "unknown machine"]
    if series.one.local:
        parts[0] += " (all on one machine)"
    if k.gpus_per_node:
        parts.append(f"{count(k.gpus_per_node, 'GPU')} a node")
    parts += [
        f"profile {k.profile}",
        count(k.epochs, "epoch"),
        f"data {k.data}",
        f"batch {k.batch:g} a worker",
    ]
    return ", ".join(parts)


def code(series: Series) -> str:
    """Which training code, and whose where that is in question: ", code fd54350, checkout team-b"."""
    text = f", code {series.key.digest[:7]}" if series.key.digest else ""
    return text + (f", {series.key.whose}" if series.key.whose else "")
