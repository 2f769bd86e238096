"""What commands show of a tuner's record."""
