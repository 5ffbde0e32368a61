"""Other people's codecs read the bytes of our messages and write the same bytes again."""

import io
import warnings
from random import Random

import pytest
from hypothesis import given, settings
from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kclient.wire.versions import SUPPORTED, ApiKey
from tests.kit.property_tests import examples
from tests.kit.wire_messages import (
    APIS,
    INTER_BROKER,
    MESSAGES,
    SEEDS,
    body,
    structs,
    supported_messages,
    tame,
)

BY_KEY = {int(api) for api in APIS}
each_direction = pytest.mark.parametrize("direction", ["request", "response"])


@each_direction
@pytest.mark.parametrize(
    "api", [api for api in APIS if api not in INTER_BROKER], ids=lambda api: api.name.lower()
)
@given(seed=SEEDS)
@settings(max_examples=examples(4), deadline=None)
def test_kio_reads_our_bytes_and_writes_the_same(api, direction, seed):
    for version, message in supported_messages(api, direction, seed, tame, ours=False):
        ours = body(api, direction, version, message)
        schema = load_entity_schema(api.name.lower(), version, EntityType[direction])
        theirs, size = entity_reader(schema)(ours, 0)
        assert size == len(ours)
        out = io.BytesIO()
        entity_writer(schema)(out, theirs)
        assert out.getvalue() == ours


def kafka_python_classes():
    """(api key, direction) -> the class of kafka-python 3, for the APIs it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # how it loads its schemas
        from kafka.protocol import admin, consumer, metadata, producer
    found = {}
    for module in (admin, consumer, metadata, producer):
        for cls in vars(module).values():
            key, kind = getattr(cls, "API_KEY", None), getattr(cls, "type", None)
            if key in BY_KEY and kind in ("request", "response"):
                found[key, kind] = cls
    return found


KAFKA_PYTHON = kafka_python_classes()


@pytest.mark.parametrize(
    "which", sorted(KAFKA_PYTHON), ids=lambda w: f"{ApiKey(w[0]).name.lower()}-{w[1]}"
)
@given(seed=SEEDS)
@settings(max_examples=examples(4), deadline=None)
def test_kafka_python_reads_our_bytes_and_writes_the_same(which, seed):
    cls = KAFKA_PYTHON[which]
    api, direction = ApiKey(which[0]), which[1]
    for version, message in supported_messages(api, direction, seed, ours=False):
        if version > cls.max_version:
            continue
        if (api, direction) == (ApiKey.API_VERSIONS, "response"):
            message.error_code = 0  # else it takes the body for one of version 0
        ours = body(api, direction, version, message)
        theirs = cls.decode(ours, version=version)
        theirs._header = None  # its own decode leaves it out
        assert theirs.encode(version=version) == ours


def aiokafka_classes():
    """(api, version, direction) -> the class of aiokafka."""
    import aiokafka.protocol.admin
    import aiokafka.protocol.commit
    import aiokafka.protocol.coordination
    import aiokafka.protocol.group
    import aiokafka.protocol.metadata
    import aiokafka.protocol.offset
    import aiokafka.protocol.transaction  # noqa: F401 -- its classes register themselves
    from aiokafka.protocol.api import RequestStruct, Response

    found = {}

    def walk(cls, direction):
        for sub in cls.__subclasses__():
            walk(sub, direction)
            key, version = getattr(sub, "API_KEY", None), getattr(sub, "API_VERSION", None)
            if isinstance(key, int) and key in BY_KEY and version in SUPPORTED[key]:
                found[ApiKey(key), version, direction] = sub

    walk(RequestStruct, "request")
    walk(Response, "response")
    return found


# Wrong in aiokafka 0.14 (an int64 that is an int32; flexible without tags), and unused by it.
WRONG_THERE = {
    (ApiKey.LIST_OFFSETS, 4, "request"),
    (ApiKey.LIST_OFFSETS, 5, "request"),
    (ApiKey.DESCRIBE_ACLS, 2, "request"),
    (ApiKey.DESCRIBE_ACLS, 2, "response"),
}
AIOKAFKA = {key: cls for key, cls in aiokafka_classes().items() if key not in WRONG_THERE}


@pytest.mark.parametrize(
    "which", sorted(AIOKAFKA), ids=lambda w: f"{w[0].name.lower()}-{w[1]}-{w[2]}"
)
@given(seed=SEEDS)
@settings(max_examples=examples(10), deadline=None)
def test_aiokafka_reads_our_bytes_and_writes_the_same(which, seed):
    api, version, direction = which
    message = structs(MESSAGES[api, direction], version)(Random(seed))
    ours = body(api, direction, version, message)
    assert AIOKAFKA[which].decode(io.BytesIO(ours)).encode() == ours
