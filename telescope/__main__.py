"""Runs the command line: `python -m telescope` is `telescope`."""

from telescope.commands import main

main()
