"""A folder of somebody else's, whose files note that they ran: nothing pasted there may run one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = (
    ".venv/bin/python", ".venv/bin/uv", "aws", "bash", "cluster", "dirname", "env", "gcloud", "git", "nc",
    "pulumi", "python", "python3", "readlink", "scp", "sh", "ssh", "ssh-add", "ssh-keygen", "sudo", "uv",
)  # fmt: skip
MODULES = (
    "operations/__main__", "operations/__init__", "cli/__main__", "cli/__init__", "infra/__init__",
    "node/__init__", "localcloud/__init__", "__main__", "boto3", "encodings/__init__", "gc", "io", "json",
    "os", "re", "runpy", "signal", "site", "sitecustomize", "tomllib", "typer", "usercustomize",
)  # fmt: skip


@dataclass(frozen=True)
class Traps:
    """The folder, and what has run of it."""

    folder: Path

    @classmethod
    def set(cls, folder: Path) -> Traps:
        """Make the folder with a trap under each name."""
        ran = folder / "ran"
        for name in PROGRAMS:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"#!/bin/sh\necho {name} >>'{ran}'\nexit 99\n")
            file.chmod(0o755)
        for name in MODULES:
            file = folder / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"print({name!r}, file=open({str(ran)!r}, 'a'))\nraise SystemExit(99)\n")
        return cls(folder)

    @property
    def ran(self) -> list[str]:
        """The traps that have run."""
        file = self.folder / "ran"
        return file.read_text().splitlines() if file.exists() else []
