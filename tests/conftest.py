"""What all tests share."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from helpers.ranks import Ranks
from helpers.s3_server import Server, settings

# A shell that runs tests in the background has SIGINT ignored, nohup SIGHUP, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Two processes with tests share two cores: threads that spin until another one has its turn take six times as long.
torch.set_num_threads(1)
# A busy machine takes a second for what takes a millisecond.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")
# pytest-xdist and some shells set it; raytrain's lines would wrap there though they go into a pipe.
os.environ.pop("COLUMNS", None)


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


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of a bucket of a server on this machine that stands for S3, for this process and all that it starts."""
    server = Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(server.port).items():
            patch.setenv(name, value)
        yield "s3://bucket"
    server.close()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Processes that are the ranks of a run."""
    pool = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data: `mnist` in torchvision's layout and `hymenoptera`."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("RAYTRAIN_TEST_DATA", default)).absolute()
    if not root.is_dir():
        pytest.skip(f"the real data is not at {root}: set RAYTRAIN_TEST_DATA to a folder with mnist and hymenoptera")
    return root


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """One Ray for all trainings in this process, with this machine's CPUs; `raytrain.train` and the commands use it as
    it is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import ray.data

        from raytrain.driver import limits
        from raytrain.driver.ray_internals import own_node
        from raytrain.driver.resources import local_resources

        cpus = int(local_resources().cpus)
        limits.give_token()
        with own_node.small_node():
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current()  # which warns of its own defaults when it is made
        yield
        ray.shutdown()
