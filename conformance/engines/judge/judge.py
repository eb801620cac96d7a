"""Run one engine on one checkpoint: every configuration through random schedules, check each answer, shrink each failure.

Plain output comes from a separate process that answers one request at a time. A configuration is another process, which runs
many schedules. A failing schedule is run again in a new engine and shrunk, each attempt in an engine that has just started.
If it only fails after earlier schedules, these are reported with it. A configuration ends at its first failure.
"""

import time

from ..errors import EngineDied, EngineFailed, EngineRefused, NotStarted
from ..oracle import Oracle
from ..protocol import Options
from .against_plain import AgainstPlain
from .found import Found, purpose
from .run import Run

ASKED = {
    "tokens": (("preempt",), 'it does not say that it can be made to preempt ("preempt" in `can`)'),
    "graphs": (("graphs",), 'it does not say that its steps can be recorded or compiled ("graphs" in `can`)'),
    "varied": (
        ("drafts", "drafter"),
        'it does not say that requests can set their number of drafts, or name a drafter ("drafts", "drafter" in `can`)',
    ),
}
"""Options that are tested only if the engine says that it has one of some features; and the refusal if it has none."""


class Judge(AgainstPlain):
    """Tests an engine on a checkpoint."""

    def run(self, configurations: dict[str, Options]) -> Found:
        """Compare every configuration with the plain one, whether or not that is in the list.

        Raises: NotStarted for an engine that ends before its first answer.
        """
        try:
            try:
                self.plain = self.open_plain()
                started = self.plain.start(self.model, Options(dtype=next(iter(configurations.values())).dtype))
            except EngineDied as error:
                raise NotStarted(str(error)) from error
            except (EngineRefused, EngineFailed) as error:
                self.found.ended("plain", "repeated", error)
                return self.found
            self.found.engine = f"{started.name} {started.version}"
            self.can = started.can
            if self.weights is not None:
                self.oracle = Oracle(self.weights, started.dtype, started.state)
            for configuration, chosen in configurations.items():
                if self.most is not None and len(self.found.failures) >= self.most:
                    self.found.not_run.append(configuration)
                else:
                    self.configuration(configuration, chosen)
        finally:
            if self.plain is not None:
                self.plain.close()
        return self.found

    def configuration(self, name: str, options: Options) -> None:
        began = time.monotonic()
        run = Run(self, name, options)
        try:
            for option, (features, why) in ASKED.items():
                if getattr(options, option) is not None and not {*features} & {*self.can}:
                    raise EngineRefused(why)
            run.all()
        except (EngineRefused, EngineFailed, EngineDied) as error:
            self.found.ended(name, purpose(name), error)
        finally:
            run.close()
        says = self.found.refusals.get(name) or "; ".join(
            f"{f.law}: {f.finding}" for f in self.found.failures if f.configuration == name
        )
        self.watch(f"{name}: {run.done} schedules, {time.monotonic() - began:.0f} s{f': {says}' if says else ''}", True)
