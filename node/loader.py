"""The loader: it fetches the cluster's code and settings, checks their digests, and starts the boot.

The loader is a single file, because a machine has it before it has any other code. It is in the bucket: on
the local stack as a plain file, on a cloud as a zip (which Python runs like a file) of the loader and the
client for the cloud's bucket (`infra.bundle.loader_archive`).

The usage is `loader.py --bucket BUCKET --role ROLE [--host HOST] [--code FOLDER] [--power-off]`. The bucket
is a folder, `s3://name` or `gs://name`. Without a host the machine finds its name by itself.
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
    from node.aws import services as aws
    from node.gcp import services as gcp


S3, GS = "s3://", "gs://"
CURRENT = "current.json"
IMAGE = "image.json"
"""The counterpart of `current.json` for machines that become images. They run before the cluster exists."""
LASTING = ("controller", "login")
"""The roles whose machines boot again after a power cut. A node is ended, and another one launched."""


def fetch(bucket: str, key: str) -> bytes:
    """Return the content of an object in the cluster's bucket."""
    return cloud_bucket(bucket).get(key) if bucket.startswith((S3, GS)) else (Path(bucket) / key).read_bytes()


@functools.cache
def cloud_bucket(bucket: str) -> aws.Bucket | gcp.Bucket:
    """Return the bucket's client with this machine's identity.

    On AWS the region is the environment's or its own.
    """
    if bucket.startswith(GS):
        from node.gcp import metadata
        from node.gcp import services as gcp

        return gcp.Bucket(bucket, metadata.Metadata().token)
    from node.aws import imds
    from node.aws import services as aws

    instance = imds.Metadata()
    return aws.Bucket(bucket, os.environ.get("AWS_REGION") or instance.region(), instance.credentials)


def checked(bucket: str, entry: dict[str, str]) -> bytes:
    """Return the object that `entry` names, after a check of its digest.

    Raises:
        SystemExit: The digest is wrong.
    """
    import hashlib

    content = fetch(bucket, entry["key"])
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        raise SystemExit(f"{entry['key']}: digest {digest}, but current.json names {entry['sha256']}")
    return content


def place(target: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    with draft.open("wb") as stream:
        stream.write(content)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    draft.replace(target)


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, atomically."""
    if link.is_symlink() and str(link.readlink()) == target:
        return
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(link)


def install(bucket: str, code: Path, name: str = CURRENT, *, durable: bool = False) -> Path:
    """Unpack the current code below `code` and write the settings beside it. Both stay for the next boot.

    Args:
        name: The object that names the code and the settings.
        durable: Whether the disk has all content before it has its name. Otherwise a power cut may leave
            empty files, which the next boot would take for the code.

    Returns:
        The folder of the code.
    """
    current = json.loads(fetch(bucket, name))
    code.mkdir(parents=True, exist_ok=True)
    folder = code / str(current["code"]["sha256"])[:16]
    if not folder.exists():
        # Imported late to save time: most boots on a shared disk find the code in place.
        import tempfile
        import zipfile

        content = checked(bucket, current["code"])
        with tempfile.TemporaryDirectory(dir=code) as draft:
            archive = Path(draft) / "code.zip"
            archive.write_bytes(content)
            zipfile.ZipFile(archive).extractall(Path(draft) / "code")
            if durable:
                os.sync()
            try:
                os.rename(Path(draft) / "code", folder)  # noqa: PTH104
            except OSError:
                if not folder.exists():  # otherwise another machine on the same disk was first, which is fine
                    raise
    settings = code / f"settings-{current['settings']['sha256'][:16]}.json"
    if not settings.exists():
        place(settings, checked(bucket, current["settings"]), durable=durable)
    point(code / "current", folder.name)
    point(code / "settings.json", settings.name)
    return folder


def install_or_reuse(bucket: str, code: Path, name: str = CURRENT, *, durable: bool = False) -> Path:
    """Run `install`, or use the code of the last boot if a cloud's bucket cannot be reached.

    Raises:
        SystemExit: There is no code to run. The message says why.
    """
    if not bucket.startswith((S3, GS)):
        return install(bucket, code, name, durable=durable)
    try:
        return install(bucket, code, name, durable=durable)
    except OSError as error:
        if not (code / "current").exists() or not (code / "settings.json").exists():
            raise SystemExit(str(error)) from error
        print(f"going on with the code of the last boot: {error}", file=sys.stderr, flush=True)
        return (code / "current").resolve()


def import_from(folder: Path) -> None:
    """Make Python import `node` from `folder`, and forget the modules that the loader has imported.

    What has been imported from there already stays (`localcloud.fork_server`).
    """
    sys.path.insert(0, str(folder))
    if str(folder / "node") in getattr(sys.modules.get("node"), "__path__", ()):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "node"]:
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
    name = IMAGE if arguments.role == "image" else CURRENT
    # The machine of the local stack may be somebody's desktop, on which a sync can take a minute.
    durable = arguments.role in LASTING and arguments.bucket.startswith((S3, GS))
    import_from(install_or_reuse(arguments.bucket, code, name, durable=durable))

    from node.bootstrap.main import bootstrap

    bootstrap(
        code / "settings.json",
        arguments.role,
        arguments.host,
        arguments.bucket,
        power_off=arguments.power_off,
    )


if __name__ == "__main__":
    main()
