"""Put byte code into the archives from which Spark's Python processes import pyspark and py4j.

Spark has these archives first on the path of every Python process that it starts. They hold sources alone, and an
archive cannot keep what Python compiles: each process compiles what it imports again, 0.9 s of processor time each
time. The tests start some hundred such processes. The byte code of another Python than this one's is ignored.
"""

import compileall
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode

UNUSED = ("connect", "ml", "mllib", "pandas", "pipelines", "testing", "tests")
"""Folders of pyspark that a worker of ours does not import from."""


def main():
    """Compile the archives of the pyspark of this environment, unless that is done."""
    folder = Path(find_spec("pyspark").origin).parent / "python" / "lib"
    for archive in sorted(folder.glob("py*.zip")):
        with zipfile.ZipFile(archive) as given:
            names = given.namelist()
            if any(name.endswith(".pyc") for name in names):
                continue
            wanted = [
                name
                for name in names
                if name.endswith(".py") and not set(name.split("/")[1:-1]) & set(UNUSED)
            ]
            with tempfile.TemporaryDirectory() as root:
                given.extractall(root, wanted)
                compileall.compile_dir(
                    root,
                    quiet=2,
                    legacy=True,
                    ddir=str(archive),
                    invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
                )
                with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as kept:
                    for path in sorted(Path(root).rglob("*.pyc")):
                        kept.write(path, path.relative_to(root).as_posix())


sys.exit(main())
