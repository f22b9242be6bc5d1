"""Storage that hosts share: run on the launcher, it holds the pack of `harness.faults.reads`, and notes who reads what.

    PYTHONPATH=tests python -m harness.cluster.bucket FOLDER

FOLDER/port gets the port once the pack is there, and FOLDER/log a line for each read.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

from helpers.s3_server import Server, settings

from harness.faults import packer
from harness.faults.data_runs import put, write_images
from harness.faults.spoiling import Spoiler


def main(folder: Path) -> None:
    """Serve until the host ends."""
    server = Server()
    os.environ.update(settings(server.port))
    with tempfile.TemporaryDirectory() as place:
        write_images(Path(place, "images"))
        packer.pack(str(Path(place, "images")), str(Path(place, "pack")), 0.0)
        for file in Path(place, "pack").iterdir():
            put(file.name, file.read_bytes())
    spoiler = Spoiler(server.port, "0.0.0.0", folder / "log")
    (folder / "partial").write_text(str(spoiler.port))
    os.replace(folder / "partial", folder / "port")
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
