"""Search as a service: an API, a page, and training runs to watch."""

from selhn.serve.start import serve

__all__ = ["serve"]
