import pytest

from trw_pipeline.reporting import figures


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are written to files, while they are."""
    seen = []
    write = figures.write_figure

    def look(path, figure, *arguments):
        seen.append(figure)
        write(path, figure, *arguments)

    monkeypatch.setattr(figures, "write_figure", look)
    return seen
