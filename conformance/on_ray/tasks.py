"""The tasks of `ssmspec conform run` on a node. What they return is plain data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ssmspec_ref.contract import Adapter

from ..isolation.declared import bare
from ..progress.shards import Found, Shard, diagnosed, judge_shard
from ..run.open_adapters import Opening
from ..run.plan import Selection, plan
from ..run.results import Setting
from ..run.runner import Alone


def declare(opening: Opening, name: str) -> tuple[Adapter, dict[str, str]]:
    """The declaration of an adapter, without its functions, and the packages that it imports."""
    with replace(opening, names=(name,)).open() as adapters:
        return bare(adapters[name]), Opening.versions(adapters.values())


def judge(opening: Opening, selection: Selection, setting: Setting, shard: Shard) -> list[dict[str, Any]]:
    return [one.plain() for one in judge_shard(opening, selection, setting, shard)]


def diagnose(
    opening: Opening, selection: Selection, setting: Setting, names: tuple[str, ...], failures: Sequence[Found]
) -> list[list[dict[str, Any]]]:
    """The smallest case of each kind of failure, in order: each smallest case is a hint for the next."""
    with replace(opening, names=names).open() as adapters:
        made = diagnosed(plan(adapters, selection)[0], Alone(setting), failures)
    return [[diagnosis.model_dump(mode="json") for diagnosis in of] for of in made]
