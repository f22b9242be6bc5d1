"""What all tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that runs the tests in the background has SIGINT ignored, and all that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps decoded images away from the user's own cache, for this process and all that it starts."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


_S3 = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of a bucket of a server on this machine that stands for S3, for this process and all that it starts."""
    import boto3

    server = subprocess.Popen([sys.executable, "-c", _S3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="bucket")
        yield "s3://bucket"
    server.stdin.close()
    server.stdout.close()
    server.wait(10)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data: `mnist` in torchvision's layout and `hymenoptera`."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("RAYTRAIN_TEST_DATA", default)).absolute()
    if not root.is_dir():
        pytest.skip(f"the real data is not at {root}: set RAYTRAIN_TEST_DATA to a folder with mnist and hymenoptera")
    return root
