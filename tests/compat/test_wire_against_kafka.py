"""Kafka's own message classes read our bytes, inter-broker messages included, and write the same."""

import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.kit.apache_kafka import java, with_kafka
from tests.kit.wire_messages import MESSAGES, body, everything_set, structs, versions_of

PROGRAM = Path(__file__).parent / "java" / "EchoMessages.java"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    with_kafka,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK, not only a JRE"),
]


def test_kafkas_classes_read_our_bytes_and_write_the_same():
    cases = []
    rng = Random(1)
    for (api, direction), cls in MESSAGES.items():
        for version in versions_of(api):
            drawn = [structs(cls, version, ours=False)(rng) for _ in range(5)]
            for message in [everything_set(cls, version, ours=False), *drawn]:
                ours = body(api, direction, version, message)
                cases.append((f"{int(api)} {version} {direction}", ours, message))
    done = subprocess.run(
        java("256m", str(PROGRAM)),
        input="".join(f"{head} {ours.hex()}\n" for head, ours, _ in cases),
        capture_output=True,
        text=True,
        check=True,
        timeout=55,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(cases)
    wrong = [
        f"{head}: {message}\n  ours   {ours.hex()}\n  theirs {answer}"
        for (head, ours, message), answer in zip(cases, answers, strict=True)
        if answer != f"{ours.hex()} 0"
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:10])
