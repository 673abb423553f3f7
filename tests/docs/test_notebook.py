"""The notebook docs/five-minutes.ipynb runs from top to bottom, and is committed as it ran.

`python -m tests.docs.test_notebook` runs it and writes its outputs into the file.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "nbclient", reason="running the notebook needs nbclient and ipykernel: pip install -e '.[dev]'"
)

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from tests import ROOT

NOTEBOOK = ROOT / "docs" / "five-minutes.ipynb"


class ThisInterpreter(AsyncKernelManager):
    """Whatever kernels the user has installed: the interpreter that runs the tests runs the notebook."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            language="python",
        )


def execute(notebook: Any, folder: Path) -> Any:
    """Runs every cell in `folder`; the first that raises ends it with its traceback."""
    about = notebook.metadata.copy()
    ours = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as sockets
    ):  # files instead of ports; their paths have to be short
        client = NotebookClient(
            notebook,
            kernel_manager_class=ThisInterpreter,
            config=Config(
                ThisInterpreter={"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
            ),
            timeout=300,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        ran = client.execute(env={**os.environ, **ours})
    ran.metadata = about  # without the version of the interpreter
    return ran


@pytest.fixture(scope="module")
def committed() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def code(committed: Any) -> list[Any]:
    return [cell for cell in committed.cells if cell.cell_type == "code"]


def test_every_cell_runs(committed: Any, tmp_path: Path) -> None:
    bare = nbformat.from_dict(committed)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    ran = execute(bare, tmp_path)
    assert all(cell.execution_count for cell in ran.cells if cell.cell_type == "code")
    assert (tmp_path / "runs" / "five-minutes" / "report.html").is_file()


def test_a_cell_that_raises_fails(tmp_path: Path) -> None:
    wrong = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 + 1 == 3")])
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(wrong, tmp_path)


@pytest.mark.parametrize(
    "claim",
    ["rewards", "deltas", "advantages", "what_if", "sigma", "trace.ok", "eval/sampled_accuracy"],
)
def test_claims_are_asserted(code: list[Any], claim: str) -> None:
    asserted = [
        line
        for cell in code
        for line in cell.source.splitlines()
        if line.strip().startswith("assert ")
    ]
    assert any(claim in line for line in asserted)


def test_committed_as_run_from_top_to_bottom(code: list[Any]) -> None:
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [
        output
        for cell in code
        for output in cell.outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]


def test_outputs_name_no_machine() -> None:
    text = NOTEBOOK.read_text("utf-8")
    found = re.findall(
        r"/(?:work|tmp|root|home|Users|usr|opt|var|mnt)/[^\"\s]*|site-packages|ipykernel_\d+", text
    )
    assert found == []


def test_small_enough_to_read(committed: Any, code: list[Any]) -> None:
    assert NOTEBOOK.stat().st_size < 300_000
    assert max(len(cell.source.splitlines()) for cell in code) <= 15


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(execute(nbformat.read(NOTEBOOK, as_version=4), Path(folder)), NOTEBOOK)
