"""Results as one HTML page: of an experiment, of a server, of a site."""
