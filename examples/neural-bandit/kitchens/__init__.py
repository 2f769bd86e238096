"""Look for the best action together, with a neural network."""
