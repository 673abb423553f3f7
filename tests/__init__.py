from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository: docs, recipes and benchmarks are tested from here."""
