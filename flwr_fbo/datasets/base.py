"""What all loaders share."""


class DataError(RuntimeError):
    """A data set is missing or damaged; the message names the file and what to do."""
