"""Files of the distribution's packages that tests need and no machine shall have installed."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.program.locations import cache_root

DOWNLOAD_SECONDS = 120.0


def file_of(package: str, path: str) -> Path:
    """A file of a package, which is kept in the cache. Skips the test where the package cannot be had.

    Args:
        path: a pattern below the package's root, as `Path.glob` takes it.
    """
    folder = cache_root() / "tests" / f"{package}-{platform.freedesktop_os_release()['VERSION_ID']}"
    if found := next(folder.glob(path), None):
        return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        for command in (["apt-get", "download", package], ["sh", "-c", "dpkg-deb -x *.deb ."]):
            subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=DOWNLOAD_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no {package} of this distribution's: {error}")
    return next(folder.glob(path))
