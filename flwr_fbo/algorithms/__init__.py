"""One folder per algorithm, free of Flower: settings, agent and server."""
