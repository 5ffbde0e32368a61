"""Apache Kafka as a peer: where its jars are, and the mark of tests that need them.

tools/setup.sh fetches them while it makes `.venv` for the tests (by benchmarks/apache.py), and continues without
them if that fails. A test with Apache Kafka is then skipped, with the reason.
"""

import shutil

import pytest

from benchmarks import apache

JARS = apache.folder()
CLASSPATH = f"{JARS}/*"

with_kafka = pytest.mark.skipif(
    not apache.is_complete(JARS) or shutil.which("java") is None,
    reason=f"no Apache Kafka {apache.VERSION} in {JARS} (make venv fetches it by Maven), or no Java",
)
