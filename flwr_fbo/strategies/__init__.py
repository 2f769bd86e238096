"""Flower strategies: records <-> arrays around one server half."""
