"""Actor, critic, reference and reward: each takes a batch and returns it with its own columns added."""
