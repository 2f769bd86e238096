"""What commands show of tuning studies."""
