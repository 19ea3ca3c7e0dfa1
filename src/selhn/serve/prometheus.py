"""Request counts and times for Prometheus, in its text format."""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """The number of values up to each of several bounds."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterable[str]:
        """The lines for Prometheus, with cumulative counts."""
        for bound, below in zip((*self.bounds, "+Inf"), accumulate(self.counts)):
            joined = ",".join(part for part in (labels, f'le="{bound}"') if part)
            yield f"{name}_bucket{{{joined}}} {below}"
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.total:.6f}"
        yield f"{name}_count{braces} {sum(self.counts)}"


class RequestMetrics:
    """The numbers of requests, their times, and the sizes of batches."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.batches = Histogram(BATCHES)
        self.in_flight = 0

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All numbers, and further values by name, each with its description."""
        lines = ["# HELP selhn_requests_total Requests answered.", "# TYPE selhn_requests_total counter"]
        for (route, method, status), count in sorted(self.requests.items()):
            labels = f'route="{route}",method="{method}",status="{status}"'
            lines.append(f"selhn_requests_total{{{labels}}} {count}")
        lines += ["# HELP selhn_request_seconds Time to answer.", "# TYPE selhn_request_seconds histogram"]
        for route, seconds in sorted(self.seconds.items()):
            lines += seconds.lines("selhn_request_seconds", f'route="{route}"')
        lines += ["# HELP selhn_batch_queries Queries per batch.", "# TYPE selhn_batch_queries histogram"]
        lines += self.batches.lines("selhn_batch_queries")
        in_flight = {"requests_in_flight": ("Being answered now.", self.in_flight)}
        for name, (words, value) in {**in_flight, **gauges}.items():
            lines += [f"# HELP selhn_{name} {words}", f"# TYPE selhn_{name} gauge", f"selhn_{name} {value:g}"]
        return "\n".join(lines) + "\n"


class Measured:
    """ASGI middleware that counts and times every request."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics):
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, start = 499, time.perf_counter()  # 499: the client disconnected before there was an answer

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, noting)
        finally:
            self.metrics.in_flight -= 1
            # Only our own paths and methods become labels, not whatever clients send.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if route != "other" else "other"
            self.metrics.requests[route, method, status] += 1
            self.metrics.seconds[route].observe(time.perf_counter() - start)
