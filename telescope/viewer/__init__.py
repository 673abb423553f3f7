"""The page over a run folder: live (`server`) or as one HTML file (`report`).

`run_data` reads a run, `payload` makes the JSON that a browser gets, `whatif` recomputes credit
with other settings; `static/` is the page itself. Reads telescope.ledger and telescope.explain.
Imports no torch.
"""
