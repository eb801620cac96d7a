"""The bandit over tree shapes: its choice, its reward, and what the paper prints instead."""

import numpy as np
import pytest

from ssmspec_ref.draft import bandit
from ssmspec_ref.errors import BudgetError, ParameterError

from .refusals import refused


def play(rewards: list[list[float]], rounds: int, exploration: float) -> bandit.Bandit:
    state = bandit.Bandit.fresh(len(rewards))
    for t in range(rounds):
        arm = state.choose(exploration)
        state = state.update(arm, rewards[arm][t % len(rewards[arm])])
    return state


def test_each_arm_is_played_once_before_any_is_played_twice() -> None:
    assert play([[-9.0], [-1.0], [-5.0]], 3, 0.0).plays == (1, 1, 1)


@pytest.mark.parametrize(("plays", "exploration"), [((4, 1), 0.3), ((1, 4), 0.05), ((2, 9), 1.7)])
def test_the_choice_turns_where_the_means_differ_by_the_confidence_of_the_paper(
    plays: tuple[int, int], exploration: float
) -> None:
    """Arm 0 is chosen iff mean_0 - mean_1 >= lambda (sqrt(2 ln t / n_1) - sqrt(2 ln t / n_0)), t the rounds played."""
    t = sum(plays)
    turn = exploration * (np.sqrt(2 * np.log(t) / plays[1]) - np.sqrt(2 * np.log(t) / plays[0]))
    for side, arm in ((1e-9, 0), (-1e-9, 1)):
        means = (-0.5 + turn + side, -0.5)
        rewards = (means[0] * plays[0], means[1] * plays[1])
        assert bandit.Bandit(plays, rewards).choose(exploration) == arm


def test_the_bandit_settles_on_the_arm_of_the_highest_mean() -> None:
    state = play([[-0.9, -0.7], [-0.5, -0.4], [-0.6]], 400, 0.1)
    assert state.plays[1] > 350


def test_the_printed_sum_of_rewards_would_abandon_the_best_arm() -> None:
    """Rewards are negative: by their sum, the arm that was played most looks worst."""
    state = play([[-0.9], [-0.4]], 10, 0.0)
    assert state.choose(0.0) == 1
    assert max(range(2), key=lambda k: state.rewards[k]) == 0


def test_the_reward_counts_the_targets_own_token() -> None:
    assert bandit.reward(1, 4, 0.25) == -2.0
    refused(BudgetError, "count the target's own token", bandit.reward, 0, 4, 0.25)


def test_the_reward_is_minus_the_inverse_speedup() -> None:
    emitted, steps, draft = 3, 5, 0.1
    assert bandit.reward(emitted, steps, draft) == pytest.approx(-(1 + steps * draft) / emitted, rel=1e-15)
    assert bandit.measured_reward(emitted, 1.4, steps, draft) < bandit.reward(emitted, steps, draft)


@pytest.mark.parametrize(
    "call",
    [
        lambda: bandit.Bandit.fresh(0),
        lambda: bandit.Bandit.fresh(2).choose(-1.0),
        lambda: bandit.Bandit.fresh(2).choose(float("nan")),
        lambda: bandit.Bandit.fresh(2).update(2, 0.0),
        lambda: bandit.Bandit.fresh(2).update(0, float("nan")),
        lambda: bandit.Bandit.fresh(2).update(0, float("-inf")),
        lambda: bandit.measured_reward(1, -1.0, 1, 1.0),
    ],
)
def test_bad_bandit_arguments_are_refused(call) -> None:
    refused(ParameterError, r"give|must", call)
