"""The colours of all pictures, and how names are written in them."""

from __future__ import annotations

# Okabe & Ito's palette, told apart with any colour vision; styles for grey print.
# A method without a look of its own takes these in turn.
COLORS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#8c564b")
BLUE, GREEN, PINK, ORANGE, SKY, VERMILION, BROWN = COLORS


def literal(label: str) -> str:
    """Return a label as matplotlib shows it, and reads no formula in it."""
    return label.replace("$", r"\$")
