"""What an import brings: nothing that is not needed, whatever the machine."""

import pytest

from benchmarks.bench_import import PROGRAMS, TORCH, measure


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_we_import_brings_no_library_that_nobody_asked_for(name):
    figures = measure(PROGRAMS[name])
    assert figures["ms"] > 0
    assert figures["modules"] > 0


@pytest.mark.slow
def test_the_door_is_little_beside_torch():
    door, torch = (measure(program)["modules"] for program in ("import trw_pipeline", PROGRAMS[TORCH]))
    assert door < torch / 30


def test_a_library_that_came_along_is_told():
    with pytest.raises(RuntimeError, match=r"loads \['PIL'\]"):
        measure("import trw_pipeline, PIL")
