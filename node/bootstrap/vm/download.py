"""Fetches files whose content is known by its hash."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path

from node import plurals
from node.bootstrap import hook_scripts
from node.bootstrap.context import Context
from node.cloud.call import ATTEMPTS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PASSING
from node.cloud.errors import ServiceError, UnreachableError

TIMEOUT_SECONDS = 60.0
"""The time limit for a connection, and for each wait for data."""
PIECE_BYTES = 1 << 20


def pinned(context: Context, source: str, sha256: str, target: Path) -> None:
    """Fetches a file, and keeps it only if it has the given hash.

    Args:
        source: `https://…`, an object of this machine's cloud (`s3://…`, `gs://…`), or a path in the archive.
        sha256: The hash, in small hexadecimal digits.
        target: The file to write; its folder exists.

    Raises:
        ServiceError: It cannot be fetched, or has another hash. Then there is no file.
        FileNotFoundError: The node archive does not have it.
    """
    draft = target.with_name(f".{target.name}.draft")
    try:
        if source.startswith(("http://", "https://")):
            _web(source, draft)
        elif "://" in source:
            draft.write_bytes(hook_scripts.fetch(context, source))
        else:
            draft.write_bytes(context.path(context.folders.code / source).read_bytes())
        with draft.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != sha256:
            raise ServiceError(
                f"{source}: its SHA-256 is {found}, and should be {sha256}: it is not installed"
            )
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _web(url: str, target: Path) -> None:
    """Fetches a URL. Redirects are followed, because the content is checked afterwards."""
    pause, last = FIRST_PAUSE_SECONDS, ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        try:
            with (
                urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
                target.open("wb") as output,
            ):
                while piece := response.read(PIECE_BYTES):
                    output.write(piece)
                expected = response.headers.get("Content-Length")
            got = target.stat().st_size
            if expected is None or got == int(expected):
                return
            # A connection that ends early is no error of http.client when a response is read in pieces.
            last = f"{got} of {expected} bytes came"
        except urllib.error.HTTPError as error:
            if error.code not in PASSING:
                raise ServiceError(f"{url}: HTTP status {error.code}", status=error.code) from error
            last = f"HTTP status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            last = str(getattr(error, "reason", error)) or repr(error)
    raise UnreachableError(f"{url} could not be fetched ({plurals.count(ATTEMPTS, 'attempt')}): {last}")
