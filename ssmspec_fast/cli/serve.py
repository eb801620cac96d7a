"""`ssmspec serve`: serves a checkpoint at an OpenAI-compatible endpoint."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmspec_ref.errors import OptionError, ParameterError, SpecError
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import one_of

from .generate import WITHOUT_A_MODEL, shipped
from .options import (
    AcceptOption,
    CheckpointOption,
    DeviceOption,
    DrafterOption,
    DraftsOption,
    DtypeOption,
    MemoryOption,
    MethodOption,
    RowsOption,
    TreeOption,
)
from .refusal import refused

if TYPE_CHECKING:
    from ..serve.server import Server

ACCEPTANCES = ("naive", "multi-step", "rejection")
"""Rules that sample: requests choose their temperature."""
ALSO = "Another drafter that a request may name: ngram, ngram+bigram, lookup or a checkpoint. May be repeated."
app = typer.Typer(pretty_exceptions_enable=False, help="Serve a checkpoint over HTTP, in the form of OpenAI's API.")


@app.callback(invoke_without_command=True)
def serve(
    typed: typer.Context,
    checkpoint: CheckpointOption = None,
    drafter: DrafterOption = None,
    method: MethodOption = None,
    acceptance: Annotated[
        str,
        typer.Option(help="Acceptance rule: naive (with a seed, the tokens of plain decoding), multi-step, rejection."),
    ] = "naive",
    mode: Annotated[str, typer.Option(help="bitwise: the bits of plain decoding; fast: may round differently.")] = "bitwise",
    drafts: DraftsOption = 4,
    also: Annotated[list[str] | None, typer.Option(help=ALSO)] = None,
    rows: RowsOption = 1,
    tree: TreeOption = None,
    slots: Annotated[int, typer.Option(min=1, help="Completions decoded at once.")] = 8,
    context: Annotated[int, typer.Option(min=2, help="Most tokens of a prompt and its completion together.")] = 2048,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    accept_field: AcceptOption = None,
    memory: MemoryOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the model for clients. Default: the folder's.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every network of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="SSMSPEC_API_KEY", help="Key that clients must send; better set in the environment."),
    ] = None,
    queue: Annotated[int, typer.Option(help="Most completions that wait; further ones are answered with 429.")] = 256,
    most_choices: Annotated[int, typer.Option(min=1, help="Most completions of one request: prompts times n.")] = 16,
    most_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of one request.")] = 1 << 20,
    drain: Annotated[int, typer.Option(min=0, help="Seconds that running requests may take after SIGTERM or Ctrl-C.")] = 30,
) -> None:
    """Serve until SIGTERM or Ctrl-C. The address goes to standard error once the server listens."""
    limits = {"queue": queue, "choices": most_choices, "bytes": most_bytes, "key": api_key}
    drafting = {"drafts": drafts, "rows": rows, "tree": tree}
    room = {"slots": slots, "cache": context, "mode": mode, "device": device, "dtype": dtype, "limit": memory}
    room["accept"] = accept_field or []
    try:
        if queue < most_choices:
            raise OptionError(f"--queue is {queue}; it must be {most_choices} or more, which is --most-choices")
        if api_key == "":
            raise OptionError("the API key is empty; give one, or unset SSMSPEC_API_KEY")
        if name == "":
            raise OptionError("--name is empty; give a name, or omit it")
        one_of("--acceptance", acceptance, ACCEPTANCES)
        if drafter is None:
            Typed(typed).unused(["--drafts", "--rows", "--also"], "no drafter was given", "give --drafter")
        if checkpoint is None:
            raise OptionError("no checkpoint was given; give --checkpoint FOLDER, or the name of one that ships")
        bound = _socket(host, port)
        given = {"method": method, "acceptance": acceptance} | drafting | room
        try:
            server = _server(checkpoint, [drafter, *(also or [])] if drafter else [], name, drain, limits, given)
        except BaseException:
            bound.close()
            raise
        if api_key is None and not ip_address(bound.getsockname()[0]).is_loopback:
            typer.echo(f"warning: no --api-key; whoever reaches {host} can use this server", err=True)
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error, "serve") from error
    server.run(sockets=[bound])


def _socket(host: str, port: int) -> socket.socket:
    """A socket that is bound, before the model is loaded; the server listens at it later. Raises: ParameterError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(os.name == "posix"))
        made.bind(address[:2])
        return made
    except OSError as error:
        raise ParameterError(f"cannot listen at {host} port {port}: {error}; give another --host or --port") from error


def _server(
    checkpoint: Path, drafters: list[str], name: str | None, drain: int, limits: dict[str, Any], given: dict[str, Any]
) -> "Server":
    """The server, loaded and checked, not yet listening. Raises: ParameterError, ModuleNotFoundError, and what loading
    raises."""
    from ..models.build import Parts
    from ..serve.app import Limits, Service
    from ..serve.logits import Logged
    from ..serve.server import Server, to_stderr
    from ..serve.template import template_of

    folder = shipped(checkpoint) or checkpoint
    named: dict[str, str | Path] = {one: str(shipped(Path(one), WITHOUT_A_MODEL)) for one in drafters}
    chosen = len(named) > 1 or (len(named) == 1 and chosen_by_requests(given))
    parts = Parts(folder, named if chosen else next(iter(named.values()), None), engine=Logged, **given)
    generator = parts.load()
    speculation = f"{drafters[0]}:{given['tree'] or given['drafts']}" if drafters else None
    about = {"dtype": str(parts.type).removeprefix("torch."), "speculation": speculation}
    called = folder.resolve().name if name is None else name
    service = Service(generator, called, Limits(**limits), template_of(folder, generator.tokenizer), about)
    return Server(service, to_stderr(called), drain)


def chosen_by_requests(given: dict[str, Any]) -> bool:
    """Whether a request may say how much is drafted: for chains whose drafts are not drawn."""
    return given["tree"] is None and given["rows"] == 1 and given["acceptance"] == "naive"
