"""Agents of the bandits: choose, tell, and what is shared."""
