from __future__ import annotations

import pytest

from grpo.learner.estimates.time import estimate_seconds, measured_flops


@pytest.mark.parametrize(
    ("trained", "frozen_passes", "seconds"),
    [
        # 1e6 x 2 x 1e4 = 2e10 operations at half of 1e9 a second: 40 s; 1e4 x 2e-4 = 2 s; 4 x .5 = 2 s
        (0, 0, 44.0),
        # and 1e6 x 6 x 5e3 = 3e10 operations: 60 s; 5e3 x 2e-5 = .1 s
        (5e3, 0, 104.1),
        # 8 instead of 6: 20 s more
        (5e3, 1, 124.1),
        # a reference and a teacher: 20 s more
        (5e3, 2, 144.1),
    ],
)
def test_the_time_follows_from_tokens_parameters_and_stages(trained: float, frozen_passes: int, seconds: float):
    """A million parameters, ten thousand generated tokens, four stages."""
    estimate = estimate_seconds(
        parameters=10**6, generated=1e4, trained=trained, stages=4, frozen_passes=frozen_passes, flops=1e9
    )
    assert estimate == pytest.approx(seconds)


def test_the_speed_of_this_machine_is_a_number():
    """More than a pocket calculator's, less than a computing centre's."""
    assert 1e8 < measured_flops() < 1e16
