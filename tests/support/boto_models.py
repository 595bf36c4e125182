"""Whoever imports this reads the models of AWS's services once a process.

Each boto3 session reads them again, and the one of EC2 takes a third of a second: more than most tests of an
account do besides. They are only read, so sessions can share them.
"""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import JSONFileLoader

_read = JSONFileLoader.load_file


@functools.cache
def _shared(path: str) -> Any:
    return _read(JSONFileLoader(), path)


JSONFileLoader.load_file = lambda _self, path: _shared(path)
