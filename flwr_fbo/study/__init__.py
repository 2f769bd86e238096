"""Agreement of server and agents, whatever the algorithm."""
