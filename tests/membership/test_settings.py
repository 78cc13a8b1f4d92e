"""Settings that contradict each other are refused where they are written."""

import msgspec
import pytest

from hyperscale.errors import InputError
from hyperscale.membership.settings import MembershipConfig


def test_the_defaults_keep_the_promised_bounds() -> None:
    config = MembershipConfig()
    noticed_s = 2 * config.probe_interval_s
    assert noticed_s + config.suspicion_max_s <= 15.0
    assert config.suspicion_min_s > 5.0


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"probe_timeout_s": 2.0}, "probe_timeout_s=2.0 must be below probe_interval_s=1.0"),
        ({"suspicion_min_s": 11.0}, "suspicion_min_s=11.0 plus final_probe_s=1.5"),
    ],
)
def test_contradicting_settings_name_both_values(setting: dict[str, float], part: str) -> None:
    with pytest.raises(InputError, match=part):
        MembershipConfig(**setting)


@pytest.mark.parametrize(
    "raw", [{"probe_interval_s": 0}, {"watched": 1000}, {"unknown": 1}, {"gossip_fanout": 0}]
)
def test_values_out_of_bounds_and_unknown_ones_are_refused(raw: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(raw, MembershipConfig)
