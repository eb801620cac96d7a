"""Choose among tree shapes while decoding: a bandit whose rounds are windows.

Two errors in the papers are corrected here. The mean reward is printed as a sum over rounds (equation 1), which would
penalise an arm for being used, since rewards are negative. And an accepted count of zero would divide by zero (equation 2):
the count must include the token that the target always emits, so it is at least 1.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite, log, sqrt

from ..errors import BudgetError, ParameterError


@dataclass(frozen=True)
class Bandit:
    """The statistics of each arm: the number of plays, and the sum of rewards. A new query starts a new bandit."""

    plays: tuple[int, ...]
    rewards: tuple[float, ...]

    @classmethod
    def fresh(cls, arms: int) -> "Bandit":
        if arms < 1:
            raise ParameterError(f"arms is {arms}; give at least 1")
        return cls((0,) * arms, (0.0,) * arms)

    def choose(self, exploration: float) -> int:
        """The arm of the next round: argmax_k mean_k + exploration sqrt(2 ln t / n_k); arms never played come first.

        t counts the rounds played, n_k those of arm k. On ties the lowest index wins.

        Raises: ParameterError (exploration below 0).
        Source: Mamba Drafters, equation 1 (using the mean); Auer 2002, UCB1.
        """
        if not exploration >= 0:
            raise ParameterError(f"exploration is {exploration}; it must be at least 0")
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
                f"arm {arm} has the reward {reward}; give an arm from 0 to {len(self.plays) - 1} and a finite reward"
            )
        plays, rewards = list(self.plays), list(self.rewards)
        plays[arm] += 1
        rewards[arm] += reward
        return replace(self, plays=tuple(plays), rewards=tuple(rewards))


def reward(emitted: int, draft_steps: int, draft_cost: float) -> float:
    """-(1 + draft_cost * draft_steps) / emitted: the negative time per emitted token, in plain steps of the target.

    `emitted` counts the token that the target always emits; `draft_cost` is t_draft / t_target.

    Raises: BudgetError (emitted below 1), ParameterError (negative costs).
    Source: Mamba Drafters, equation 2 and appendix A.6.
    """
    return measured_reward(emitted, 1.0, draft_steps, draft_cost)


def measured_reward(emitted: int, verify_cost: float, draft_steps: int, draft_cost: float) -> float:
    """-(verify_cost + draft_steps * draft_cost) / emitted, with costs in plain steps of the target, measured for the arm.

    The paper assumes that verification costs one plain step for any tree; for a recurrent target this is not true.

    Raises: BudgetError (emitted below 1), ParameterError (negative costs).
    Source: ours, from Mamba Drafters, appendix A.6, keeping t_target(g).
    """
    if not emitted >= 1:
        raise BudgetError(f"emitted is {emitted}; it must be at least 1: count the target's own token")
    if not (verify_cost >= 0 and draft_cost >= 0 and draft_steps >= 0):
        raise ParameterError(f"costs are {verify_cost}, {draft_steps} x {draft_cost}; they must be at least 0")
    return -(verify_cost + draft_steps * draft_cost) / emitted
