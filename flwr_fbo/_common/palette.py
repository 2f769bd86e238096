"""The colours of all pictures."""

from __future__ import annotations

# Okabe & Ito's palette, told apart with any colour vision; styles for grey print.
# A method without a look of its own takes these in turn.
COLORS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#8c564b")
BLUE, GREEN, PINK, ORANGE, SKY, VERMILION, BROWN = COLORS
