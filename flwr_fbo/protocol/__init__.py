"""What server and agents say to each other: settings, studies, instructions."""
