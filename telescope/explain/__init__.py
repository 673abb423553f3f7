"""The arithmetic of a token, with its numbers substituted and checked. Reads the ledger; needs no torch."""
