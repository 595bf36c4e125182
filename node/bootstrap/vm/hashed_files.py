"""Fetches files whose content is known by its hash."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from node.bootstrap import hook_scripts
from node.bootstrap.context import Context
from node.system import files, http_client, plurals
from node.system.cloud_api import ServiceError, UnreachableError

TIMEOUT_SECONDS = 60.0
"""The time limit for a connection, and for each wait for data."""
PIECE_BYTES = 1 << 20


def download(context: Context, source: str, sha256: str, target: Path) -> None:
    """Fetch a file, and keeps it only if it has the given hash.

    Args:
        source: `https://…`, an object of this machine's cloud (`s3://…`, `gs://…`), or a path in the archive.
        sha256: The hash, in small hexadecimal digits.
        target: The file to write; its folder exists.

    Raises:
        ServiceError: It cannot be fetched, or has another hash. Then there is no file.
        FileNotFoundError: The node archive does not have it.
    """
    with files.replacing(target) as draft:
        if source.startswith(("http://", "https://")):
            _web(source, draft)
        elif "://" in source:
            draft.write(hook_scripts.fetch(context, source))
        else:
            draft.write(context.path(context.folders.code / source).read_bytes())
        draft.seek(0)
        digest = hashlib.file_digest(draft, "sha256").hexdigest()  # type: ignore[arg-type]
        if digest != sha256:
            raise ServiceError(
                f"{source}: its SHA-256 is {digest}, and should be {sha256}: it is not installed"
            )


def _web(url: str, target: BinaryIO) -> None:
    """Fetch a URL. Redirects are followed, because the content is checked afterwards."""

    def once() -> None:
        target.seek(0)
        target.truncate()
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            shutil.copyfileobj(response, target, PIECE_BYTES)
            expected = response.headers.get("Content-Length")
        # A connection that ends early is no error of http.client when a response is read in pieces.
        if expected is not None and target.tell() != int(expected):
            raise OSError(f"{target.tell()} of {expected} bytes came")

    try:
        http_client.retried(once, http_client.ATTEMPTS)
    except urllib.error.HTTPError as error:
        if error.code not in http_client.PASSING:
            raise ServiceError(f"{url}: HTTP status {error.code}", status=error.code) from error
        raise _unreachable(url, f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, http_client.reason(error)) from error


def _unreachable(url: str, reason: str) -> UnreachableError:
    return UnreachableError(
        f"{url} could not be fetched ({plurals.count(http_client.ATTEMPTS, 'attempt')}): {reason}"
    )


STAMPS = "usr/share/slurm-stacks/packages"
"""A file for each installed package, named by the hash of its file. An image has the folder, too."""
DRAFTS = "var/tmp/slurm-stacks"
