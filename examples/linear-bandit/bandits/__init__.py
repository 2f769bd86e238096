"""Play a linear bandit together, without showing anybody what was played."""
