"""Server half of each algorithm: plan, receive, broadcast."""
