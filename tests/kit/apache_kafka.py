"""Apache Kafka as a peer: where its jars are, and the mark of tests that need them.

tools/setup.sh fetches them while it makes `.venv` for the tests (benchmarks/apache.py says how), and goes on without
them where that fails. A test beside Apache Kafka then skips, and says why.
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
