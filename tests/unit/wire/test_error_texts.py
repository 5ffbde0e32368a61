"""Error texts in responses: cut to what a peer can read, in every API and version."""

from dataclasses import fields, is_dataclass

import pytest

from kclient.wire import messages, produce
from kclient.wire.errors import MalformedMessage
from kclient.wire.primitives import MAX_ERROR_TEXT
from kclient.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
)
from kclient.wire.versions import SUPPORTED, ApiKey
from tests.kit.wire_messages import APIS, MESSAGES, everything_set, versions_of

LONG = "größe " * 100_000
FIELD = "error_message"


def texts(message: object, replacement: str | None = None) -> list[str]:
    """Return every error text in *message*, each set to *replacement* first if there is one."""
    found = []
    for name in [field.name for field in fields(message)]:  # type: ignore[arg-type]
        value = getattr(message, name)
        if name == FIELD:
            if replacement is not None:
                setattr(message, name, replacement)
            found.append(getattr(message, name))
        for one in value if isinstance(value, list) else [value]:
            if is_dataclass(one):
                found += texts(one, replacement)
    return found


WITH_TEXTS = [
    (api, version)
    for api in APIS
    for version in versions_of(api)
    if texts(everything_set(MESSAGES[api, "response"], version))
]


def test_many_apis_have_error_texts() -> None:
    assert len({api for api, _ in WITH_TEXTS}) >= 9


@pytest.mark.parametrize(("api", "version"), WITH_TEXTS)
def test_a_long_error_text_is_cut_in_every_api(api: ApiKey, version: int) -> None:
    response = everything_set(MESSAGES[api, "response"], version)
    assert texts(response, LONG)
    data = messages.encode_response(api, version, 7, response)
    _, read = messages.decode_response(api, version, data)
    for text in texts(read):
        if text:  # "" where this version has no such field
            assert len(text.encode()) <= MAX_ERROR_TEXT
            assert text.endswith("...")
            assert LONG.startswith(text[:-3])


@pytest.mark.parametrize("version", range(8, SUPPORTED[ApiKey.PRODUCE].max + 1))
def test_a_long_error_text_of_a_produce_is_cut(version: int) -> None:
    partition = ProducePartitionResponse(
        0, 87, record_errors=[RecordError(3, LONG)], error_message=LONG
    )
    response = ProduceResponse([ProduceTopicResponse("t", [partition])])
    data = produce.encode_response(response, version, 7)
    _, read = produce.decode_response(memoryview(data), version)
    (found,) = read.topics[0].partitions
    for text in (found.error_message, found.record_errors[0].message):
        assert len(text.encode()) <= MAX_ERROR_TEXT
        assert text.endswith("...")


@pytest.mark.parametrize("text", ["\udcff", "a/\ud800/b", "x" * MAX_ERROR_TEXT, "ü" * 512, ""])
def test_an_error_text_is_written_whatever_it_holds(text: str) -> None:
    response = everything_set(MESSAGES[ApiKey.DESCRIBE_CONFIGS, "response"], 1)
    texts(response, text)
    data = messages.encode_response(ApiKey.DESCRIBE_CONFIGS, 1, 7, response)
    _, read = messages.decode_response(ApiKey.DESCRIBE_CONFIGS, 1, data)
    (found,) = texts(read)
    assert found == text.encode(errors="backslashreplace").decode()


@pytest.mark.parametrize("size", [32_767, 32_768, 1_000_000])
def test_a_compact_string_is_as_long_as_any_other_at_most(size: int) -> None:
    request = ProduceRequest(1, 1000, [ProduceTopic("x" * size, [ProducePartition(0, b"")])])
    frame = memoryview(b"".join(produce.encode_request(request, 9, 7, None)))
    _, body = messages.decode_request_header(frame)
    if size <= 32_767:
        assert produce.decode_request(frame[body:], 9).topics[0].name == "x" * size
        return
    with pytest.raises(MalformedMessage, match="the limit is 32767"):
        produce.decode_request(frame[body:], 9)
