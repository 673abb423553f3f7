"""Prints what the extra `docs` needs, so that the site is built without installing torch."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
print(*(f"'{requirement}'" for requirement in project["optional-dependencies"]["docs"]))
