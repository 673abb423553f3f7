"""The page over runs: live (`server`) or as one HTML file (`report`).

`api` answers the page's addresses, for both. `runs` finds runs, `run_data` reads one, `payload`
makes the JSON of a sample, `columns` that of a whole step, `whatif` recomputes credit with other
settings; `static/` is the page itself. Reads telescope.ledger and telescope.explain. Imports no
torch.
"""
