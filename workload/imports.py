"""Makes the import of large packages faster."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Import packages in the `with` block without the garbage collector.

    TensorFlow makes millions of objects that live as long as the process. The collector would examine them
    again and again and find nothing, which takes a fifth of the import's time; afterwards it leaves them out.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
