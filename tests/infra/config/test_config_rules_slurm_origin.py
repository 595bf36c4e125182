"""Impossible origins of Slurm: one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import sentences
from tests.support.stack_parts import check_refusal, pyxis
from tests.support.stack_values import mistakes, values

DEBS = pyxis("s3://bucket/slurmd.deb")["packages"]
PLAIN = pyxis("http://h/e.deb")["packages"]
RPM = pyxis("s3://b/e.rpm")["packages"]
MIRROR = {"url": "https://h/apt", "suite": "noble", "key": "https://h/key.asc", "fingerprint": "A" * 40}
SHORT = {**MIRROR, "fingerprint": "A1"}
BAKED = {"slurm.source": "debian-13", "image.bake": True}
OWN = {"id": "ami-0123456789abcdef0"}

# stack, changes, path and code of the one mistake
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("aws", {"slurm.source": "debian-13"}, "slurm.source", "slurm.source-not-baked"),
    ("aws", {**BAKED, "partitions[0].image": OWN}, "partitions[0].image", "slurm.source-own-image"),
    ("aws", {**BAKED, "controller.image": OWN}, "controller.image", "slurm.source-own-image"),
    ("aws", {**BAKED, "slurm.source": "debian-12"}, "slurm.source", "value.choice"),
    ("local", {"slurm.source": "debian-13"}, "slurm.source", "slurm.need-isolation"),
    ("local", {"slurm.repository": MIRROR}, "slurm.repository", "slurm.need-isolation"),
    ("local", {"slurm.packages": DEBS}, "slurm.packages", "slurm.need-isolation"),
    ("aws", {"slurm.repository": MIRROR, "slurm.packages": DEBS}, "slurm", "slurm.one-origin"),
    (
        "aws",
        {"slurm.packages": PLAIN},
        "slurm.packages[0].source",
        "source.scheme",
    ),
    (
        "aws",
        {"slurm.packages": RPM},
        "slurm.packages[0].source",
        "package.not-deb",
    ),
    ("aws", {"slurm.packages": DEBS * 2}, "slurm.packages[1].sha256", "package.twice"),
    ("aws", {"slurm.repository": {**MIRROR, "key": "http://h/k"}}, "slurm.repository.key", "value.form"),
    ("aws", {"slurm.repository": {**MIRROR, "suite": "a b"}}, "slurm.repository.suite", "value.form"),
    (
        "gcp",
        {"slurm.repository": SHORT},
        "slurm.repository.fingerprint",
        "value.form",
    ),
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "code"), REFUSED, ids=[f"{path}-{code}" for _, _, path, code in REFUSED]
)
def test_refused(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    sentences.check(
        pytestconfig,
        __file__,
        (str(m) for stack, changes, *_ in REFUSED for m in mistakes(values(stack, changes))),
    )
