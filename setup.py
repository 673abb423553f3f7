"""What pyproject.toml cannot say: the folder recipes/ is installed as `telescope.recipes`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["telescope*"]), "telescope.recipes"],
    package_dir={"telescope.recipes": "recipes"},
)
