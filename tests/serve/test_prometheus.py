import pytest

from selhn.serve.prometheus import Histogram, Measured, RequestMetrics


def test_a_histogram_counts_all_values_up_to_a_bound():
    found = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 9):
        found.observe(value)
    assert list(found.lines("h", 'a="b"')) == [
        'h_bucket{a="b",le="1"} 2',
        'h_bucket{a="b",le="2.5"} 3',
        'h_bucket{a="b",le="+Inf"} 4',
        'h_sum{a="b"} 12.500000',
        'h_count{a="b"} 4',
    ]
    assert list(Histogram((1,)).lines("h"))[-1] == "h_count 0"


def test_the_text_is_what_prometheus_reads(client):
    assert client.get("/api/v1/search", params={"text": "a dog"}).status_code == 200
    assert client.get("/nothing/of/ours").status_code == 404
    lines = client.get("/metrics").text.splitlines()
    assert 'selhn_requests_total{route="/api/v1/search",method="GET",status="200"} 1' in lines
    assert 'selhn_requests_total{route="other",method="other",status="404"} 1' in lines
    assert "selhn_index_items 12" in lines
    assert 'selhn_batch_queries_bucket{le="1"} 1' in lines
    assert "selhn_requests_in_flight 1" in lines, "this very request"
    values = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    for name in values:
        assert any(name == one or name.startswith(f"{one}_") for one in typed), name
    for line in lines:
        if not line.startswith("#"):
            float(line.rpartition(" ")[2])


@pytest.mark.anyio
async def test_what_ends_without_an_answer_is_counted():
    metrics = RequestMetrics()

    async def breaks(scope, receive, send):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await Measured(breaks, metrics)({"type": "http", "method": "GET"}, None, None)
    assert metrics.requests == {("other", "other", 499): 1}
    assert metrics.in_flight == 0


@pytest.fixture
def anyio_backend():
    return "asyncio"
