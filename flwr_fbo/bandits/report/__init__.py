"""What commands show of bandits."""
