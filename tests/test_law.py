import numpy as np
import pytest

from xshare import XShareError
from xshare.latency_law import fit_law


def test_a_line_is_found_again():
    law = fit_law([10, 20, 40, 80], [3.0, 4.0, 6.0, 10.0])
    assert (law.a, law.b, law.r2) == (pytest.approx(2), pytest.approx(0.1), pytest.approx(1))
    assert law.gain(80, 30) == pytest.approx(2)
    assert law.share(80) == pytest.approx(0.8)
    assert str(law) == "step = 2 + 0.1 * T ms, R² 1.000"


def test_noise_is_admitted():
    rng = np.random.default_rng(0)
    assert fit_law([10, 20, 40, 80], list(rng.normal(5, 1, 4))).r2 < 0.9


def test_two_sizes_are_no_law():
    with pytest.raises(XShareError, match="three sizes or more, not 2"):
        fit_law([10, 20], [1.0, 2.0])
