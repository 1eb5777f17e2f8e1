"""Forcing windows and the names of their columns."""

from __future__ import annotations

import datetime
import json
import re

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st

from neural_lam_anemoi.forcing import ForcingWindow, shifted_name, shifted_names

SIX_HOURS = datetime.timedelta(hours=6)


@pytest.mark.parametrize(
    ("past", "future", "offsets"),
    [(1, 1, [0, 1, 2]), (0, 0, [1]), (2, 1, [-1, 0, 1, 2]), (3, 0, [-2, -1, 0, 1]), (0, 2, [1, 2, 3])],
)
def test_offsets_are_round_the_predicted_time(past: int, future: int, offsets: list[int]) -> None:
    window = ForcingWindow(past, future)
    assert list(window.offsets) == offsets
    assert window.length == len(offsets)


def test_defaults_are_those_of_neural_lam() -> None:
    assert ForcingWindow() == ForcingWindow(past=1, future=1)


@given(past=st.integers(0, 9), future=st.integers(0, 9))
def test_a_window_survives_json(past: int, future: int) -> None:
    window = ForcingWindow(past, future)
    assert ForcingWindow.from_dict(json.loads(json.dumps(window.to_dict()))) == window


@pytest.mark.parametrize(
    ("offset", "step", "name"),
    [
        (1, SIX_HOURS, "toa_p06h"),
        (-1, SIX_HOURS, "toa_m06h"),
        (0, SIX_HOURS, "toa_p00h"),
        (2, datetime.timedelta(days=3), "toa_p144h"),
        (2, datetime.timedelta(minutes=30), "toa_p60min"),
        (-1, datetime.timedelta(minutes=5), "toa_m05min"),
        (1, datetime.timedelta(minutes=90), "toa_p90min"),
        (1, datetime.timedelta(seconds=45), "toa_p45s"),
        (-3, datetime.timedelta(seconds=90), "toa_m270s"),
    ],
)
def test_names(offset: int, step: datetime.timedelta, name: str) -> None:
    assert shifted_name("toa", offset, step) == name


def test_columns_run_by_variable_then_by_offset() -> None:
    names = shifted_names(["toa", "sst"], ForcingWindow(1, 1), SIX_HOURS)
    assert names == ["toa_p00h", "toa_p06h", "toa_p12h", "sst_p00h", "sst_p06h", "sst_p12h"]


@given(
    past=st.integers(0, 6),
    future=st.integers(0, 6),
    seconds=st.one_of(st.integers(1, 7200), st.sampled_from([900, 3600, 10800, 21600, 86400])),
)
def test_no_two_columns_share_a_name(past: int, future: int, seconds: int) -> None:
    """And none has a sign that Hydra, MLflow or earthkit can't bear."""
    window = ForcingWindow(past, future)
    names = shifted_names(["toa", "sst"], window, datetime.timedelta(seconds=seconds))
    assert len(set(names)) == 2 * window.length
    assert all(re.fullmatch(r"(toa|sst)_[pm]\d{2,}(h|min|s)", name) for name in names)


def test_hydra_bears_the_names() -> None:
    parser = OverridesParser.create()
    with pytest.raises(HydraException):
        parser.parse_override("data.normalizer.toa+6h=[toa]")
    for name in shifted_names(["toa"], ForcingWindow(2, 1), SIX_HOURS):
        override = parser.parse_override(f"data.normalizer.{name}=[{name}]")
        assert override.key_or_group == f"data.normalizer.{name}"
        assert override.value() == [name]
