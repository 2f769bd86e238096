"""The site's half of bandits."""
