"""What all reports are made of, whatever the kind of study."""
