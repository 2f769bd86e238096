"""Tuning of a whole federated training: trials of the app, a private choice."""
