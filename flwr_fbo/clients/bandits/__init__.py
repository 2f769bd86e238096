"""A bandit's site: its durable agents, policy and Flower client."""
