"""The site's half of tuning."""
