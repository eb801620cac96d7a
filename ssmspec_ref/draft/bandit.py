"""Choosing among tree shapes while decoding: a bandit whose rounds are windows.

The papers' slips, not repeated here: the mean reward is printed as a sum over rounds (equation 1; a sum of negative rewards
would punish an arm for being used), and an accepted count of zero would divide by zero (equation 2; the token that the target
always emits must be counted, so the count is at least 1).
"""

from dataclasses import dataclass, replace
from math import inf, isfinite, log, sqrt

from ..errors import BudgetError, ParameterError


@dataclass(frozen=True)
class Bandit:
    """What is known of each arm: how often it was played, and the sum of its rewards. A new query starts a new bandit."""

    plays: tuple[int, ...]
    rewards: tuple[float, ...]

    @classmethod
    def fresh(cls, arms: int) -> "Bandit":
        if arms < 1:
            raise ParameterError(f"arms came as {arms}; give at least 1")
        return cls((0,) * arms, (0.0,) * arms)

    def choose(self, exploration: float) -> int:
        """The arm of the next round: argmax_k mean_k + exploration sqrt(2 ln t / n_k), an arm never played first.

        t counts the rounds played, n_k those of arm k; the lowest index among equals.

        Raises: ParameterError (exploration below 0).
        Source: Mamba Drafters, equation 1 (with the mean as a mean); Auer 2002, UCB1.
        """
        if not exploration >= 0:
            raise ParameterError(f"exploration came as {exploration}; give at least 0")
        t = sum(self.plays)
        bounds = [
            inf if n == 0 else total / n + exploration * sqrt(2 * log(t) / n)
            for n, total in zip(self.plays, self.rewards, strict=True)
        ]
        return bounds.index(max(bounds))

    def update(self, arm: int, reward: float) -> "Bandit":
        """The bandit after one more round of `arm`.

        Raises: ParameterError (no such arm, or a reward that is not finite).
        """
        if not 0 <= arm < len(self.plays) or not isfinite(reward):
            raise ParameterError(
                f"arm {arm} came with reward {reward}; give an arm from 0 to {len(self.plays) - 1} and a finite number"
            )
        plays, rewards = list(self.plays), list(self.rewards)
        plays[arm] += 1
        rewards[arm] += reward
        return replace(self, plays=tuple(plays), rewards=tuple(rewards))


def reward(emitted: int, draft_steps: int, draft_cost: float) -> float:
    """-(1 + draft_cost * draft_steps) / emitted: minus the time per emitted token, in plain steps of the target.

    `emitted` counts the token that the target always emits; `draft_cost` is t_draft / t_target.

    Raises: BudgetError (emitted below 1), ParameterError (negative costs).
    Source: Mamba Drafters, equation 2 and appendix A.6.
    """
    return measured_reward(emitted, 1.0, draft_steps, draft_cost)


def measured_reward(emitted: int, verify_cost: float, draft_steps: int, draft_cost: float) -> float:
    """-(verify_cost + draft_steps * draft_cost) / emitted, costs in plain steps of the target, as measured for the arm.

    The paper takes verification to cost one plain step whatever the tree; for a recurrent target it does not.

    Raises: BudgetError (emitted below 1), ParameterError (negative costs).
    Source: ours, from Mamba Drafters, appendix A.6, with t_target(g) kept.
    """
    if not emitted >= 1:
        raise BudgetError(f"emitted came as {emitted}; a window emits at least the target's own token, count it")
    if not (verify_cost >= 0 and draft_cost >= 0 and draft_steps >= 0):
        raise ParameterError(f"costs came as {verify_cost}, {draft_steps} x {draft_cost}; give numbers of at least 0")
    return -(verify_cost + draft_steps * draft_cost) / emitted
