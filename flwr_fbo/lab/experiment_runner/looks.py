"""Colour, line style and marker of methods that mean the same in all experiments."""

from __future__ import annotations

from flwr_fbo._common.pictures import BLUE, GREEN, VERMILION

Look = tuple[str, str, str]
MARKERS = ("D", "s", "x", "P", "d", "*", "<")

OURS: Look = (BLUE, "-", "D")
OPEN: Look = (GREEN, "--", "s")
ALONE: Look = ("#000000", "-", "o")
RANDOM: Look = ("#7f7f7f", ":", "v")
UNINFORMED: Look = (VERMILION, "-.", "^")
