"""`python -m telescope` is the command `telescope`."""

from telescope.commands import main

main()
