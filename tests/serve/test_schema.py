"""Whatever fits the description of the API, and whatever does not: no answer is a failure of the service."""

from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from tiny import make_collection

from selhn.serve.app import create_app
from selhn.serve.service import Service
from selhn.serve.watched_runs import WatchedRuns

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
from schemathesis.specs.openapi.checks import response_schema_conformance  # noqa: E402

OPERATIONS = (
    "GET /search", "POST /search", "GET /items", "GET /timeline", "GET /duplicates", "GET /item", "GET /picture",
    "GET /original", "GET /albums", "PATCH /album", "DELETE /album", "GET /look", "GET /about", "GET /progress",
    "GET /models", "GET /health", "POST /items", "PATCH /item", "DELETE /item", "GET /runs", "GET /runs/log",
    "GET /runs/verdict", "POST /cookie",
)  # fmt: skip


# Hypothesis watches Python's global random numbers, which a thread of the service may draw from at the same time.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    (folder / "runs" / "one").mkdir(parents=True)
    (folder / "runs" / "one" / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    service = Service(make_collection(folder), WatchedRuns(folder / "runs"), writable=True)
    app = create_app(service, hosts=["testserver"])

    @asynccontextmanager
    async def stays_open(app):  # every call starts and ends the application
        yield

    app.router.lifespan_context = stays_open
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)


def check(schema, name, examples):
    method, path = name.split()
    operation = schema[f"/api/v1{path}"][method]
    check_cases(operation, schemathesis.GenerationMode.POSITIVE, examples)
    with suppress(Unsatisfiable):  # where nothing is asked for, nothing can be wrong
        check_cases(operation, schemathesis.GenerationMode.NEGATIVE, examples)


def check_cases(operation, mode, examples):
    """Cases that fit the description, or that do not, and what the service says to them."""
    quick = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @quick
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case):
        answer = case.call()
        assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.status_code} {answer.text}"
        if answer.status_code >= 400:
            assert list(answer.json()) == ["error"]
        else:
            case.validate_response(answer, checks=[response_schema_conformance])

    holds()


def test_every_operation_is_tried(schema):
    found = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in schema.raw_schema["paths"].items()
        for method in methods
    }
    assert found == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_answer_is_a_failure(schema, name):
    check(schema, name, 15)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_answer_is_a_failure_in_many_tries(schema, name):
    check(schema, name, 200)
