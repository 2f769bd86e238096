"""What server and agents agree on, whatever the algorithm."""
