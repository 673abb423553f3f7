"""The page: every token's numbers on a fence, live beside a run or as one file. Reads the ledger; needs no torch."""
