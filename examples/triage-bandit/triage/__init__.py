"""Learn together which patients need a biopsy now."""
