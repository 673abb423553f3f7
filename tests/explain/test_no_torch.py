"""Explaining reads numbers: it must not wait for torch."""

import subprocess
import sys

_SCRIPT = """
import sys
from pathlib import Path
from telescope.explain import arithmetic, dialogue, markdown, numbers, questions, stages, tables, terminal, trace, words
(sample,) = numbers.read_numbers(Path(sys.argv[1]))
terminal.render(sample, color=False)
markdown.page(sample, lang="zh", level="expert", width=80)
questions.answer(1, sample)
stages.flow(sample, "en", 80)
tables.columns("en", 80)
heavy = [name for name in ("torch", "transformers", "numpy", "pyarrow") if name in sys.modules]
print(heavy)
"""


def test_explaining_imports_no_torch(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("values = [0.3, 0.6]\nrewards = [0, 1]\n")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
