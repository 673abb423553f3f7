"""The recipes of this repository, installed as `telescope.recipes`.

`telescope train NAME` finds them by name. This folder holds TOML files and the Python that they need.
"""
