"""Shared by all tests: one torch thread, no network, the same examples in every run (`--hypothesis-profile explore`
draws new ones). `pytest --bench` profiles the kernels instead of testing."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeat")


@pytest.fixture(scope="module")
def cache_home(tmp_path_factory):
    """An empty cache that the tests of a module share; it comes before what builds into it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_addoption(parser):
    parser.addoption("--bench", action="store_true", help="profile the kernels instead of running tests")


def pytest_cmdline_main(config):
    if config.getoption("--bench"):
        from benchmarks import kernels

        return kernels.main()
