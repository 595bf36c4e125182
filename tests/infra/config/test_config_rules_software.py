"""Impossible distributions, Slurms, hooks, containers, health checks and job scripts: one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stack_parts import (
    ENROOT_DEB,
    UNMAINTAINED,
    Refused,
    check_refusal,
    check_sentences,
    each_refusal,
    pyxis,
)

DEBS = pyxis("s3://bucket/slurmd.deb")["packages"]
PLAIN = pyxis("http://h/e.deb")["packages"]
RPM = pyxis("s3://b/e.rpm")["packages"]
MIRROR = {"url": "https://h/apt", "suite": "noble", "key": "https://h/key.asc", "fingerprint": "A" * 40}
SHORT = {**MIRROR, "fingerprint": "A1"}
BAKED = {"slurm.source": "debian-13", "image.bake": True}
OWN = {"id": "ami-0123456789abcdef0"}

# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    # the distribution, and its Slurm
    ("aws", {"image.source": "debian-13"}, "image.source", "image.unsupported"),
    ("gcp", {"image.source": "debian-13"}, "image.source", "image.unsupported"),
    ("local", {"image.source": "debian-13"}, "image.source", "image.source-local"),
    ("aws", {"slurm.accounting": True}, "slurm.accounting", "slurm.unmaintained"),
    ("aws", {"containers": {"runtime": "oci"}}, "containers.runtime", "slurm.unmaintained"),
    ("aws", {"slurm.accept_unmaintained": "2999-01-01"}, "slurm.accept_unmaintained", "slurm.accepted-late"),
    ("aws", {"slurm.accept_unmaintained": "soon"}, "slurm.accept_unmaintained", "value.day"),
    # another Slurm
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
    # hooks, containers, health checks, job scripts
    (
        "aws",
        {"hooks[0]": {"role": "all", "source": "/root/x.sh"}},
        "hooks[0].source",
        "source.outside-project",
    ),
    (
        "aws",
        {"hooks[0]": {"role": "all", "source": "a/../../x"}},
        "hooks[0].source",
        "source.outside-project",
    ),
    ("aws", {"hooks[0]": {"role": "all", "source": "gs://b/x"}}, "hooks[0].source", "source.scheme"),
    ("local", {"hooks[0]": {"role": "all", "source": "https://b/x"}}, "hooks[0].source", "source.scheme"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "http://b/x"}}, "hooks[0].source", "source.scheme"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://My_Bucket/x"}}, "hooks[0].source", "source.bucket"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://10.0.0.1/x"}}, "hooks[0].source", "source.bucket"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://googol/x"}}, "hooks[0].source", "source.bucket"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://ab/x"}}, "hooks[0].source", "source.bucket"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs:///x"}}, "hooks[0].source", "source.bucket"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket"}}, "hooks[0].source", "source.folder"),
    ("local", {"hooks[0]": {"role": "all"}}, "hooks[0]", "hook.source-or-script"),
    ("local", {"containers": {"runtime": "oci"}}, "containers.runtime", "containers.need-isolation"),
    ("aws", UNMAINTAINED | {"containers": {"runtime": "docker"}}, "containers.runtime", "value.choice"),
    (
        "aws",
        UNMAINTAINED | {"containers": {"runtime": "oci", "image": "x"}},
        "containers.image",
        "key.of-another-tool",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": {"runtime": "oci", "packages": []}},
        "containers.packages",
        "containers.pyxis-only",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": {"runtime": "pyxis"}},
        "containers.packages",
        "containers.no-packages",
    ),
    ("local", {"containers": pyxis(ENROOT_DEB)}, "containers.runtime", "containers.need-isolation"),
    (
        "aws",
        UNMAINTAINED | {"containers": pyxis("https://h/enroot.rpm")},
        "containers.packages[0].source",
        "package.not-deb",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": pyxis("gs://b/e.deb")},
        "containers.packages[0].source",
        "source.scheme",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": pyxis("http://h/e.deb")},
        "containers.packages[0].source",
        "source.scheme",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": pyxis("/e.deb")},
        "containers.packages[0].source",
        "source.outside-project",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": pyxis(ENROOT_DEB, "A" * 64)},
        "containers.packages[0].sha256",
        "value.form",
    ),
    (
        "aws",
        UNMAINTAINED | {"containers": pyxis(ENROOT_DEB, images="enroot")},
        "containers.images",
        "value.form",
    ),
    (
        "gcp",
        UNMAINTAINED | {"containers": pyxis("gs://b/f/")},
        "containers.packages[0].source",
        "package.not-deb",
    ),
    (
        "batch",
        {"@enabled": False, "containers": {"runtime": "oci"}},
        "containers",
        "containers.not-with-batch",
    ),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "a.sh", "script": "#!/bin/sh"}},
        "hooks[0]",
        "hook.source-or-script",
    ),
    ("aws", {"hooks[0]": {"role": "all", "script": "echo\n"}}, "hooks[0].script", "hook.interpreter"),
    # Process machines have this machine's programs.
    (
        "local",
        {"hooks[0]": {"role": "all", "script": "#!/no/shell\n"}},
        "hooks[0].script",
        "hook.interpreter",
    ),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket/f/"}}, "hooks[0].source", "source.folder"),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket/a\nb"}}, "hooks[0].source", "source.object"),
    ("local", {"health": {"enabled": True}}, "health.enabled", "health.no-devices"),
    ("aws", {"health": {"enabled": False, "skip": ["efa"]}}, "health.skip", "health.disabled"),
    ("aws", {"health": {"skip": ["gpu"]}}, "health.skip[0]", "value.choice"),
    ("aws", {"health": {"interval_seconds": 1}}, "health.interval_seconds", "value.range"),
    ("batch", {"@enabled": False, "health": {"skip": ["efa"]}}, "health", "health.not-with-batch"),
    ("gcp", {"slurm.prolog": {"source": "gs://b/a.sh"}}, "slurm.prolog.source", "job-script.address"),
    ("local", {"slurm.epilog": {"source": "/a.sh"}}, "slurm.epilog.source", "source.outside-project"),
    (
        "aws",
        UNMAINTAINED
        | {"containers": {"runtime": "pyxis", "packages": [{"source": ENROOT_DEB, "sha256": "0" * 64}] * 2}},
        "containers.packages[1].sha256",
        "package.twice",
    ),
]


@each_refusal(REFUSED)
def test_refused(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)
