import pytest

from tests.explain.number_files import FORMATS


@pytest.fixture(params=FORMATS)
def write(request, tmp_path):
    """data -> a file in each of the three formats."""

    def to_file(data: dict):
        path = tmp_path / f"numbers.{request.param}"
        path.write_text(FORMATS[request.param](data), encoding="utf-8")
        return path

    return to_file
