"""The version, readable by every module without importing the whole package."""

__version__ = "0.2.0"
