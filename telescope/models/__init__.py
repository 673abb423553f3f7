"""Hugging Face models as actor, critic and reference: loading, the value head, and the one forward that shifts."""
