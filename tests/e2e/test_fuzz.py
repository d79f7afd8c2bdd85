"""The API as its own document describes it, under random requests: valid ones and others.

The seed is fixed and the examples few, so that a failure is the same one everywhere; raise
MLXBUN_FUZZ_EXAMPLES to look further.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from doubles.process import ServerProcess, serving
from mlxbun.adapters.http.openapi import document

NUM_EXAMPLES = int(os.environ.get("MLXBUN_FUZZ_EXAMPLES", "30"))
CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance,
    status_code_conformance,
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, context_window=256, embeds=1) as server:
        yield server
        server.wait_idle()
        assert not server.complaints


schema: Any = schemathesis.openapi.from_dict(document())
schema.config.generation.update(modes=list(GenerationMode))


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=NUM_EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
    ],
)
def test_no_request_breaks_the_server_and_every_answer_is_as_described(
    case: Any, server: ServerProcess
) -> None:
    response = case.call(base_url=server.url, timeout=20)
    case.validate_response(response, checks=CHECKS)
    assert response.status_code < 500
