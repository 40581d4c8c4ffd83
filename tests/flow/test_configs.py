"""The configs that come with the project can be loaded, and the quickstart can be planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load_config
from pipeline.package_path import PREFIX, package_folder
from pipeline.source import plan_shards

ROOT = Path(__file__).parents[2]
CONFIGS = {path.name: path for path in sorted((ROOT / "configs").glob("*.y*ml"))}


def test_every_file_in_configs_is_a_config():
    files = {path.name for path in (ROOT / "configs").rglob("*") if path.is_file()}
    assert files == CONFIGS.keys() >= {"quickstart.yaml"}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_loads(name):
    config = load_config(CONFIGS[name])
    assert config.model.path
    assert not Path(config.sink.uri).is_absolute()


@pytest.mark.parametrize("name", CONFIGS)
def test_packages_that_a_config_names_are_there(name):
    config = load_config(CONFIGS[name])
    for uri in (config.model.path, *config.source.uri):
        if uri.startswith(PREFIX):
            assert package_folder(uri, what=name).is_dir()


def test_the_quickstart_has_several_shards_of_known_size():
    source = load_config(CONFIGS["quickstart.yaml"]).source
    plan = plan_shards(source)
    assert 1000 < plan.num_rows <= source.limit
    assert len(plan.shards) >= 5
    assert max(shard.rows for shard in plan.shards) <= source.rows_per_shard
    packages = {uri.removeprefix(PREFIX) for uri in source.uri}
    names = {piece.name for shard in plan.shards for piece in shard.pieces}
    assert {name.partition("/")[0] for name in names} <= packages
