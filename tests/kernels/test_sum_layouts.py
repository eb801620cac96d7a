"""One token sums the states of a channel in the order of a window: by the layouts of the compiled scans, without a device."""

import json

import pytest

from tests.kernels.test_compiled import run

pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def layouts() -> dict[str, tuple[list[str], list[str]]]:
    done = run("-m", "tests.kernels.sum_layouts")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_one_token_and_four_sum_states_in_one_order_unless_it_is_planted(
    layouts: dict[str, tuple[list[str], list[str]]],
) -> None:
    assert all(one and four for one, four in layouts.values())
    apart = {name for name, (one, four) in layouts.items() if one != four}
    assert apart == {name for name in layouts if name.startswith("planted")}
