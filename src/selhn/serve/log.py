"""The log of the service: each kind of message at most once per minute."""

import logging
import time


class Sparing(logging.Filter):
    """Passes one message of a kind per minute; the next one that passes has the number of those left out.

    A kind is a line of code and the types of what it reports. So requests cannot fill a disk.
    """

    def __init__(self, seconds: float = 60.0):
        super().__init__()
        self.seconds = seconds
        self._kinds: dict[object, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        reported = record.args if isinstance(record.args, tuple) else ()
        raised = None if record.exc_info is None else record.exc_info[0]
        kind = record.pathname, record.lineno, raised, *map(type, reported)
        now, (since, left_out) = time.monotonic(), self._kinds.get(kind, (float("-inf"), 0))
        if now - since < self.seconds:
            self._kinds[kind] = since, left_out + 1
            return False
        self._kinds[kind] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more since the last one)", ()
        return True


def log_sparingly() -> None:
    """Write to stderr what the service, its server and asyncio log, unless the caller has set up logging."""
    handler = logging.StreamHandler()
    handler.addFilter(Sparing())
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(levelname)s %(message)s")
