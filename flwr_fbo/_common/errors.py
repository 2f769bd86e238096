"""Errors that say which part of their text a server may read, and a data set's."""

from __future__ import annotations


class PublicError(Exception):
    """Base of errors with a text for the site, and perhaps another for the server.

    Parameters
    ----------
    text : str
        What the site's log says.
    public : str
        What may leave the site: no value of its data, its configuration, its file
        system, or of another study. Nothing but the error's type leaves without it.
    """

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self.public = public


class DataError(RuntimeError):
    """A data set is missing or damaged; the message names the file and what to do."""
