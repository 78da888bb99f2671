"""Heavy packages are imported without looking for garbage."""

import gc

import pytest

from grpo.host.imports import importing


@pytest.fixture(autouse=True)
def as_it_was():
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_looked_for_again_afterwards_if_it_was_before_also_where_an_import_fails(enabled):
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled() == enabled


def test_what_was_imported_is_not_looked_through_again():
    gc.unfreeze()
    with importing():
        imported = [[] for _ in range(100)]
    later = ["made afterwards"]
    there = {id(one) for one in gc.get_objects()}
    assert id(later) in there and not there & {id(one) for one in imported}
