"""The agents' own search, which every tuning algorithm adds to."""
