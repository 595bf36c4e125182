"""The first code that a machine runs: fetch the cluster's code and settings, check them, hand over.

A single file, because it is what a machine has before it has anything else. It lies in the bucket: on the
local stack as it is, on a cloud as a zip (Python runs one like any other file) of itself and of what asks the
cloud (`infra.bundle.loader_archive`).

`loader.py --bucket BUCKET --role ROLE [--host HOST] [--code FOLDER] [--power-off]`, with a folder, `s3://name`
or `gs://name` as the bucket. Without a host the machine finds its name by itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.node.aws import s3
    from infra.node.gcp import storage


S3, GS = "s3://", "gs://"
CURRENT = "current.json"
IMAGE = "image.json"
"""As `current.json`, for the machines that become images: they are there before the cluster is known."""


def fetch(bucket: str, key: str) -> bytes:
    """An object of the cluster's bucket."""
    return of_cloud(bucket).get(key) if bucket.startswith((S3, GS)) else (Path(bucket) / key).read_bytes()


@functools.cache
def of_cloud(bucket: str) -> s3.Bucket | storage.Bucket:
    """As this machine; on AWS in the region that the environment names or the machine is in."""
    if bucket.startswith(GS):
        from infra.node.gcp import metadata, storage

        return storage.Bucket(bucket, metadata.Metadata().token)
    from infra.node.aws import imds, s3

    instance = imds.Metadata()
    return s3.Bucket(bucket, os.environ.get("AWS_REGION") or instance.region(), instance.credentials)


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


def install(bucket: str, code: Path, name: str = CURRENT) -> Path:
    """Unpack the current code below `code`, write the settings beside it; both stay for the next boot.

    Args:
        name: of the object that names the others.

    Returns:
        The folder of the code.
    """
    current = json.loads(fetch(bucket, name))
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


def have(bucket: str, code: Path, name: str = CURRENT) -> Path:
    """As `install`; where a cloud's bucket cannot be reached, what the last boot has left will do.

    Raises:
        SystemExit: there is nothing to run, in words.
    """
    if not bucket.startswith((S3, GS)):
        return install(bucket, code, name)
    try:
        return install(bucket, code, name)
    except OSError as error:
        if not (code / "current").exists() or not (code / "settings.json").exists():
            raise SystemExit(str(error)) from error
        print(f"going on with the code of the last boot: {error}", file=sys.stderr, flush=True)
        return (code / "current").resolve()


def hand_over(folder: Path) -> None:
    """From here on code comes from `folder`: nothing may stay that the loader has brought along."""
    sys.path.insert(0, str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "infra"]:
        del sys.modules[name]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--host")
    parser.add_argument("--code", default="/opt/slurm-stacks")
    parser.add_argument("--power-off", action="store_true", help="an image's machine stops when it is done")
    arguments = parser.parse_args()
    code = Path(arguments.code)
    hand_over(have(arguments.bucket, code, IMAGE if arguments.role == "image" else CURRENT))

    from infra.node.bootstrap.main import bootstrap

    # Code of an earlier boot may not know the word yet.
    more = {"power_off": True} if arguments.power_off else {}
    bootstrap(code / "settings.json", arguments.role, arguments.host, arguments.bucket, **more)


if __name__ == "__main__":
    main()
