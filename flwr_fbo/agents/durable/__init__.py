"""Agents with a journal, which survive whatever ends their process."""
