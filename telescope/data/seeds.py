"""One seed from several, without state."""


def mix_seed(*parts: int) -> int:
    """(seed, step, …) to one seed: a resumed run draws what an unbroken one would."""
    mixed = 0x9E3779B97F4A7C15
    for part in parts:
        mixed = ((mixed ^ part) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed & 0x7FFFFFFFFFFFFFFF
