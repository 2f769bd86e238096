"""What the published methods are compared with."""
