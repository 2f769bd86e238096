"""Records: what a tuner keeps in its folder, and what is made of it."""
