"""Search: a query to the images or texts that fit it."""

from selhn.retrieve.index import Hit, Index

__all__ = ["Hit", "Index"]
