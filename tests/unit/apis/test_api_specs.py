"""The table of the APIs agrees with the versions served, the handlers and their messages."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import pytest

import kbroker.apis
from kbroker.apis.api_specs import API_SPECS, ApiSpec
from kbroker.apis.gates import Gate
from kbroker.apis.handlers import HandlerDependencies
from kclient.wire import messages
from kclient.wire.versions import SERVED

SPECS = [pytest.param(spec, id=spec.key.name) for spec in API_SPECS.values()]


class Anything:
    """Stands for every part of a broker: has all attributes, and may be called."""

    def __getattr__(self, name: str) -> Any:
        if name == "replica_selector_class":
            return ""
        if name.endswith("_timeout_ms"):
            return 0
        if name == "seconds":
            return lambda: 0.0
        return Anything()

    def __call__(self, *_args: Any, **_named: Any) -> Any:
        return Anything()


@pytest.fixture
def dependencies() -> HandlerDependencies:
    return cast(HandlerDependencies, Anything())


def test_every_api_served_has_a_row() -> None:
    assert set(API_SPECS) == set(SERVED)


@pytest.mark.parametrize("spec", SPECS)
def test_a_handler_takes_the_requests_of_its_api(
    spec: ApiSpec, dependencies: HandlerDependencies
) -> None:
    handler = spec.handler(dependencies)
    parameters = inspect.signature(type(handler).__call__, eval_str=True).parameters
    if getattr(handler, "raw", False):
        assert parameters["body"].annotation is memoryview
    else:
        assert parameters["request"].annotation is messages.request_class(spec.key)


@pytest.mark.parametrize("spec", SPECS)
def test_a_handler_is_in_the_file_of_its_number(
    spec: ApiSpec, dependencies: HandlerDependencies
) -> None:
    module = type(spec.handler(dependencies)).__module__
    assert module.rpartition(".")[2].startswith(f"api{spec.key:02}_{spec.key.name.lower()}")


def test_every_numbered_file_has_a_row() -> None:
    (directory,) = map(Path, kbroker.apis.__path__)
    files = {int(file.name[3:5]) for file in directory.glob("api[0-9]*.py")}
    assert files == set(API_SPECS)


@pytest.mark.parametrize("spec", SPECS)
def test_a_request_that_is_decoded_at_once_is_within_its_budget(spec: ApiSpec) -> None:
    assert spec.budget.at_once <= spec.budget.max_bytes


@pytest.mark.parametrize("spec", [s for s in API_SPECS.values() if s.gate is Gate.REGISTERED])
def test_a_request_that_waits_for_the_registration_has_a_controller_epoch(spec: ApiSpec) -> None:
    assert hasattr(messages.request_class(spec.key)(), "controller_epoch")
