"""The garbage collector rests while a training imports its packages, and works again afterwards."""

import gc

import pytest

from workload.runtime import without_collection


def test_the_collector_rests_only_in_the_block() -> None:
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()


def test_a_failed_import_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), without_collection():
        raise ImportError("no module named tensorflow")
    assert gc.isenabled()
    gc.unfreeze()
