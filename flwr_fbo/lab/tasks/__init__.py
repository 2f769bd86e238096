"""Objectives to tune and environments to play in."""
