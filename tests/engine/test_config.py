from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.engine.config import Config, read_config
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules.registry import all_rules


def written(directory: Path, text: str) -> Path:
    path = directory / "advice.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_with_every_setting(tmp_path: Path) -> None:
    config = read_config(
        written(
            tmp_path,
            """
            select = ["input-stall", "step-gap"]
            ignore = ["step-gap"]
            parameters = 7_000_000_000
            link_bandwidth_gb_per_s = 50
            device = "h100 sxm5 80gb"
            tokens_per_step = 16_384

            [limits.input-stall]
            minimum_share = 0.2
            """,
        )
    )
    assert config.options.parameters == 7_000_000_000
    assert config.options.link_bandwidth_bytes_per_s == 50e9
    assert config.options.device == "h100 sxm5 80gb"
    assert config.options.tokens_per_step == 16_384
    config.check()
    (rule,) = config.rules()
    assert (rule.id, rule.minimum_share) == ("input-stall", 0.2)


def test_an_empty_file_means_all_rules_with_their_default_limits(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, ""))
    assert config == Config()
    assert [rule.id for rule in config.rules()] == [rule.id for rule in all_rules()]
    assert config.options.parameters is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selct = []", "has unknown keys: selct.*Known keys: device, ignore, limits"),
        ("select = [", "is not valid TOML"),
        ("limits = 3", "needs one table"),
        ("[limits]\ninput-stall = 3", "needs one table"),
        ('select = "input-stall"', "select"),
        ("ignore = [3]", "ignore"),
        ('parameters = "many"', "parameters"),
        ("parameters = 0", "parameters"),
        ('link_bandwidth_gb_per_s = "fast"', "link_bandwidth_gb_per_s"),
        ("link_bandwidth_gb_per_s = -1", "link_bandwidth_gb_per_s"),
        ("link_bandwidth_gb_per_s = inf", "link_bandwidth_gb_per_s"),
        ("price_per_device_hour = nan", "price_per_device_hour"),
        ("parameters = 10_000_000_000_000_000", "parameters"),
        ("device = 5090", "device"),
        ('[limits.input-stall]\nminimum_share = "much"', r"Expected `float`.*limits"),
        ("[limits.input-stall]\nminimum_share = inf", r"Expected `float`.*limits"),
        ("[limits.input-stall]\nminimum_share = nan", r"Expected `float`.*limits"),
    ],
)
def test_unknown_keys_and_wrong_values_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_config(written(tmp_path, text))
    assert caught.value.where.endswith("advice.toml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_config(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not valid TOML"):
        read_config(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    "config",
    [
        Config(select=("input-stal",)),
        Config(ignore=("input-stal",)),
        Config(limits={"input-stal": {"minimum_share": 0.1}}),
    ],
    ids=["select", "ignore", "limits"],
)
def test_an_unknown_rule_is_refused(config: Config) -> None:
    with pytest.raises(UsageError, match=r"no rule 'input-stal'. Did you mean 'input-stall'"):
        config.rules()


def test_an_unknown_limit_names_the_known_ones() -> None:
    config = Config(limits={"input-stall": {"minimum": 0.1}})
    with pytest.raises(
        UsageError,
        match=r"no limit minimum\. Its limits: minimum_share\.",
    ):
        config.rules()
