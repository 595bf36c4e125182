"""The first code that a machine runs: fetch the cluster's code and settings, check them, hand over.

A single file, because it is what a machine has before it has anything else: on a cloud it comes in the user
data, on the local stack it lies in the bucket. It never changes for a living machine; what it loads may.

`loader.py --bucket BUCKET --role ROLE --host HOST [--code FOLDER]`
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


def fetch(bucket: str, key: str) -> bytes:
    """An object of the cluster's bucket."""
    return (Path(bucket) / key).read_bytes()


def checked(bucket: str, entry: dict[str, str]) -> bytes:
    """The object that `entry` names, if it has the digest that it should.

    Raises:
        SystemExit: it has not.
    """
    import hashlib

    content = fetch(bucket, entry["key"])
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        raise SystemExit(f"{entry['key']}: digest {digest}, but current.json names {entry['sha256']}")
    return content


def place(target: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(target)


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, in one step."""
    if link.is_symlink() and str(link.readlink()) == target:
        return
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(link)


def install(bucket: str, code: Path) -> Path:
    """Unpack the current code below `code`, write the settings beside it; both stay for the next boot.

    Returns:
        The folder of the code.
    """
    current = json.loads(fetch(bucket, "current.json"))
    code.mkdir(parents=True, exist_ok=True)
    folder = code / str(current["code"]["sha256"])[:16]
    if not folder.exists():
        # Imported where they are used: most boots on a shared disk find all of it in place.
        import tempfile
        import zipfile

        content = checked(bucket, current["code"])
        with tempfile.TemporaryDirectory(dir=code) as draft:
            archive = Path(draft) / "code.zip"
            archive.write_bytes(content)
            zipfile.ZipFile(archive).extractall(Path(draft) / "code")
            try:
                os.rename(Path(draft) / "code", folder)  # noqa: PTH104
            except OSError:
                if not folder.exists():  # another machine on the same disk was first, which is as good
                    raise
    settings = code / f"settings-{current['settings']['sha256'][:16]}.json"
    if not settings.exists():
        place(settings, checked(bucket, current["settings"]))
    point(code / "current", folder.name)
    point(code / "settings.json", settings.name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--code", default="/opt/slurm-stacks")
    arguments = parser.parse_args()
    code = Path(arguments.code)
    sys.path.insert(0, str(install(arguments.bucket, code)))

    from infra.node.bootstrap.main import bootstrap

    bootstrap(code / "settings.json", arguments.role, arguments.host, arguments.bucket)


if __name__ == "__main__":
    main()
