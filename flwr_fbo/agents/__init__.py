"""Client half of each algorithm: ask, tell, message, receive."""
