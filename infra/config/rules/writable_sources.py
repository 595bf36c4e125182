"""Rules of files that machines run as root: no user may write where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from infra.config.rules.context import CLUSTER, Context
from infra.config.storage import SharedStorage

Place = tuple[str, str]
"""The name of a bucket, and an object or the beginning of objects in it."""


def check_writable_sources(c: Context) -> None:
    """Check the hooks. Packages are known by their hash, so nobody can replace them."""
    open_to_all = list(_open_to_all(c))
    for index, hook in enumerate(c.cluster.hooks):
        if hook.source is None or (stored_object := _object_of(hook.source)) is None:
            continue
        bucket, name = stored_object
        for key, address, (other, beginning) in open_to_all:
            if bucket == other and name.startswith(beginning):
                c.add(
                    "hook.writable-by-users",
                    (*CLUSTER, "hooks", index, "source"),
                    hook.source,
                    f"a script that users cannot replace: {key} lets every user write to {address}",
                    "it runs as root on every machine of its role: put it into another bucket, or into this "
                    "project",
                )
                break


def _open_to_all(c: Context) -> Iterator[tuple[str, str, Place]]:
    """Yield the keys by which every user may write to a bucket, their values, and where they may write."""
    storage = c.cluster.storage
    for index, bucket_config in enumerate(storage.buckets):
        if not bucket_config.read_only:
            bucket, name = _parts(bucket_config.bucket)
            # Cloud Storage FUSE may write to the whole bucket: a folder cannot limit its grant.
            beginning = f"{name}/" if name and c.provider == "aws" else ""
            yield f"storage.buckets[{index}]", bucket_config.bucket, (bucket, beginning)
    for key in ("home", "apps", "scratch"):
        part = getattr(storage, key)
        if isinstance(part, SharedStorage) and part.s3_export is not None:
            # FSx writes back what users write on Lustre.
            bucket, name = _parts(part.s3_export)
            yield f"storage.{key}.s3_export", part.s3_export, (bucket, f"{name}/" if name else "")


def _parts(address: str) -> Place:
    bucket, _, name = address.partition("://")[2].partition("/")
    return bucket, name.strip("/")


def _object_of(source: str) -> Place | None:
    """Return the object of a source in a bucket, also of an https address of S3 or Cloud Storage."""
    if source.startswith(("s3://", "gs://")):
        bucket, _, name = source.partition("://")[2].partition("/")
        return bucket, name
    if not source.startswith("https://"):
        return None
    place = urlsplit(source)
    host, path = (place.hostname or ""), unquote(place.path).removeprefix("/")
    for service in (".s3.", ".s3-", ".storage.googleapis.com"):
        if service in host and host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".googleapis.com")):
            return host.partition(service)[0], path
    if host == "storage.googleapis.com" or host.startswith(("s3.", "s3-")):
        bucket, _, name = path.partition("/")
        return bucket, name
    return None
