"""The soft-cap on scores or logits, a modifier of both."""


def softcap(x, cap: float | None):
    """x, smoothly kept within (-cap, cap) (Gemma 2, arXiv:2408.00118)."""
    return x if cap is None else cap * (x / cap).tanh()
