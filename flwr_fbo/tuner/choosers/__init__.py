"""Choosers: four ways to compare the trials of a rung, behind one interface."""
