"""What every folder uses: arrays, randomness, validation, texts and errors."""
