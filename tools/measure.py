"""Prints how the package reads in numbers, beside codebases that people hold up as models.

    python tools/measure.py                     # this repository
    python tools/measure.py --commit e21e6fc    # the same at another commit, to compare

Nodes are `ast.stmt` and `ast.expr`. A code line is one that is neither blank, a comment nor part
of a docstring. The figures of the other codebases were measured in the same way in November 2026.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

ANCHORS = {
    "nodes per line": (
        "torchtitan-rl 2.1, tinker-cookbook rl 2.3, TRL trainer 2.6, rlax 3.0, prime-rl 3.3, "
        "nanochat 3.3, lm-human-preferences 4.1, CleanRL 4.5"
    ),
    "nodes per code line": (
        "torchtitan-rl 3.2, tinker 3.5, TRL 4.1, prime-rl 4.5, lm-human-preferences 5.4, "
        "rlax 5.5, nanochat 5.5, CleanRL 5.5"
    ),
    "lines over 100 characters": (
        "rlax 0 %, tinker 0.1 %, torchtitan-rl 1 %, nanochat 3 %, prime-rl 3 %, CleanRL 4 %"
    ),
    "`a, b = x, y` per 1,000 lines": "0.3 to 0.8, nanochat 4.5",
    "modules at the top of the package": "torchtitan-rl 6",
    "words in the README": "Gymnasium 689, TRL 834, CleanRL 1,120",
}
"""What other codebases have, by measure."""

BEFORE = {
    "nodes per line": "5.7",
    "nodes per code line": "7.6",
    "lines over 100 characters": "14 %",
    "`a, b = x, y` per 1,000 lines": "22.6",
    "modules at the top of the package": "21",
    "words in the README": "2,811",
}
"""What this repository had before its layout of November 2026, at commit e21e6fc."""

TARGETS = {
    "nodes per line": "≤ 4",
    "nodes per code line": "≤ 5.5",
    "lines over 100 characters": "< 2 %",
    "modules at the top of the package": "≤ 8",
    "words in the README": "≤ 900",
}


@dataclass
class Count:
    """Sums over Python files."""

    files: int = 0
    lines: int = 0
    code: int = 0
    nodes: int = 0
    long: int = 0
    pairs: int = 0

    def add(self, source: str) -> None:
        rows = source.splitlines()
        tree = ast.parse(source)
        self.files += 1
        self.lines += len(rows)
        self.code += code_lines(source, tree)
        self.nodes += sum(isinstance(node, ast.stmt | ast.expr) for node in ast.walk(tree))
        self.long += sum(len(row) > WIDTH for row in rows)
        self.pairs += sum(is_pair(node) for node in ast.walk(tree))


def code_lines(source: str, tree: ast.Module) -> int:
    """Lines with a token that is neither a comment nor part of a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if is_docstring(node):
            docstrings.update(range(node.lineno, node.end_lineno + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - docstrings)


def is_docstring(node: ast.AST) -> bool:
    """Whether a node is a string that stands alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_pair(node: ast.AST) -> bool:
    """Whether a node is `a, b = x, y`."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def count(folder: Path) -> Count:
    """The counts of all Python files under a folder."""
    total = Count()
    for path in sorted(folder.rglob("*.py")):
        total.add(path.read_text("utf-8"))
    return total


def measures(folder: Path) -> dict[str, str]:
    """Every measure of a package, as text."""
    total = count(folder)
    found = {
        "nodes per line": f"{total.nodes / total.lines:.2f}",
        "nodes per code line": f"{total.nodes / total.code:.2f}",
        "lines over 100 characters": f"{total.long / total.lines:.1%}".replace("%", " %"),
        "`a, b = x, y` per 1,000 lines": f"{1000 * total.pairs / total.lines:.1f}",
        "modules at the top of the package": str(len(list(folder.glob("*.py")))),
    }
    readme = folder.parent / "README.md"
    if readme.is_file():
        found["words in the README"] = f"{len(readme.read_text('utf-8').split()):,}"
    return found


def print_measures(folder: Path) -> None:
    """The comparison as a Markdown table."""
    print("| measure | others | before | target | now |")
    print("|---|---|---|---|---|")
    for measure, now in measures(folder).items():
        others = ANCHORS[measure]
        before = BEFORE[measure]
        print(f"| {measure} | {others} | {before} | {TARGETS.get(measure, '')} | {now} |")


def print_folders(root: Path) -> None:
    """Files, lines and code lines of every folder of the package, and of the other Python."""
    package = root / "telescope"
    print("| folder | files | lines | code lines | nodes per code line |")
    print("|---|---|---|---|---|")
    top = Count()
    for path in sorted(package.glob("*.py")):
        top.add(path.read_text("utf-8"))
    print_row(f"{package.name}/*.py", top)
    for folder in sorted(path for path in package.iterdir() if path.is_dir()):
        if any(folder.rglob("*.py")):
            print_row(f"{package.name}/{folder.name}", count(folder))
    print_row("the package", count(package))
    for name in ("recipes", "examples", "benchmarks", "tools", "tests"):
        if (root / name).is_dir():
            print_row(name, count(root / name))


def print_row(name: str, total: Count) -> None:
    """One row of the table of folders."""
    density = f"{total.nodes / total.code:.2f}" if total.code else ""
    print(f"| {name} | {total.files} | {total.lines:,} | {total.code:,} | {density} |")


def print_repository(root: Path) -> None:
    """Both tables of a checkout."""
    print_measures(root / "telescope")
    print()
    print_folders(root)


def main() -> None:
    parser = argparse.ArgumentParser(description="how the package reads, in numbers")
    parser.add_argument("--commit", help="a commit of this repository instead of the files here")
    chosen = parser.parse_args()
    if chosen.commit is None:
        print_repository(ROOT)
        return
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", chosen.commit], check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        print_repository(Path(folder))


if __name__ == "__main__":
    main()
