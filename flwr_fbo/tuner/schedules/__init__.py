"""Schedules: how many trials there are, who trains them, and for how long."""
