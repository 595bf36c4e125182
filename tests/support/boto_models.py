"""Importing this module makes all boto3 sessions of a process share the models of AWS's services.

Otherwise each session reads them again. That takes a third of a second for EC2's model, which is more than
most tests take. Nothing changes the models, so sessions can share them.
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
