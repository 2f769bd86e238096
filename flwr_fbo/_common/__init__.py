"""Arrays, randomness, validation, texts and errors, for every folder."""
