"""`ssmspec serve`: serves a checkpoint at an OpenAI-compatible endpoint."""

import os
import re
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmspec_ref.errors import OptionError, SpecError
from ssmspec_ref.options.memory import in_bytes
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import one_of

from .generate import WITHOUT_A_MODEL
from .options import (
    AcceptOption,
    CheckpointOption,
    ChooseOption,
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
from .shipped import shipped

if TYPE_CHECKING:
    from socket import socket

    from ..serve.server import Server

ACCEPTANCES = ("naive", "multi-step", "rejection")
"""Rules that sample: requests choose their temperature."""
KEY = "SSMSPEC_API_KEY"
"""The variable that holds the key."""
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
    choose: ChooseOption = False,
    also: Annotated[list[str] | None, typer.Option(help=ALSO)] = None,
    rows: RowsOption = 1,
    tree: TreeOption = None,
    slots: Annotated[int, typer.Option(min=1, help="Completions decoded at once.")] = 8,
    context: Annotated[int, typer.Option(min=2, help="Most tokens of a prompt and its completion together.")] = 2048,
    prefill_chunk: Annotated[
        int, typer.Option(help="Most tokens of prompts that are read between two steps: a multiple of 64.")
    ] = 256,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    accept_field: AcceptOption = None,
    memory: MemoryOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the model for clients. Default: the folder's.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0, every network, needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help=f"Key that clients must send. Default: the variable {KEY}, which other users cannot list."),
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Listen beyond this machine without a key: whoever reaches it may use it.")
    ] = False,
    known_host: Annotated[
        list[str] | None, typer.Option(help="Without a key: another name of this server in the Host of requests. Repeatable.")
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a proxy, whose X-Forwarded-For names the client. Repeatable.")
    ] = None,
    queue: Annotated[int, typer.Option(help="Most completions that wait; further ones are answered with 429.")] = 256,
    per_client: Annotated[
        int | None, typer.Option(help="Most waiting completions of one client's address. Default: half of --queue.")
    ] = None,
    most_choices: Annotated[int, typer.Option(min=1, help="Most completions of one request: prompts times n.")] = 16,
    most_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of one request.")] = 1 << 20,
    drain: Annotated[int, typer.Option(min=0, help="Seconds after SIGTERM or Ctrl-C until the process ends.")] = 30,
) -> None:
    """Serve until SIGTERM or Ctrl-C. The address goes to standard error once the server listens."""
    drafting = {"drafts": drafts, "choose": choose, "rows": rows, "tree": tree}
    room: dict[str, Any] = {"slots": slots, "cache": context, "mode": mode, "device": device, "dtype": dtype}
    room |= {"accept": accept_field or [], "piece": prefill_chunk}
    try:
        room["limit"] = in_bytes(memory)
        for option, count in (("--queue", queue), ("--per-client", per_client)):
            if count is not None and count < most_choices:
                raise OptionError(f"{option} is {count}; it must be {most_choices} or more, which is --most-choices")
        key = key_of(api_key, no_key)
        limits: dict[str, Any] = {"queue": queue, "choices": most_choices, "bytes": most_bytes, "key": key}
        limits |= {"each": per_client, "hosts": (*hosts(known_host or []), host), "proxies": addresses(proxy or [])}
        if name == "":
            raise OptionError("--name is empty; give a name, or omit it")
        one_of("--acceptance", acceptance, ACCEPTANCES)
        if drafter is None:
            Typed(typed).unused(["--drafts", "--choose", "--rows", "--also"], "no drafter was given", "give --drafter")
        if checkpoint is None:
            raise OptionError("no checkpoint was given; give --checkpoint FOLDER, or the name of one that ships")
        listening = _listening(host, port, key is not None or no_key)
        given = {"method": method, "acceptance": acceptance} | drafting | room
        try:
            server = _server(checkpoint, [drafter, *(also or [])] if drafter else [], name, drain, limits, given)
        except BaseException:
            listening.close()
            raise
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error, "serve") from error
    server.run(sockets=[listening])


def key_of(given: str | None, none: bool) -> str | None:
    """The key of the option, or else of the variable. Raises: OptionError for a key that is no key: an empty variable is a
    secret that was not filled in, not a server for everybody."""
    name, key = ("--api-key", given) if given is not None else (KEY, os.environ.get(KEY))
    if key is None:
        return None
    if none:
        raise OptionError(f"{name} is set, and --no-key; give one of them")
    if not key.strip():
        raise OptionError(f"the API key is empty ({name}); give one, or unset {KEY}")
    if key != key.strip() or not (key.isascii() and key.isprintable()):
        raise OptionError(f"the API key ({name}) begins or ends with a space, or holds what no header can; give another")
    return key


def addresses(given: list[str]) -> tuple[str, ...]:
    """Raises: OptionError for what is neither an address nor a network."""
    for one in given:
        try:
            ip_network(one)
        except ValueError:
            raise OptionError(f"--proxy is {one[:100]!r}; give an address, or a network such as 10.0.0.0/8") from None
    return tuple(given)


def hosts(given: list[str]) -> tuple[str, ...]:
    """Raises: OptionError for what is not the name of a host alone."""
    for one in given:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", one):
            raise OptionError(f"--known-host is {one[:100]!r}; give a name such as served.example, without https:// and port")
    return tuple(given)


def _listening(host: str, port: int, may_be_reached: bool) -> "socket":
    """A socket that is bound to the address. Raises: ParameterError; OptionError if others would reach it and may not."""
    from ..serve.network.address import bound, is_loopback

    made = bound(host, port)
    if not may_be_reached and not is_loopback(made):
        made.close()
        raise OptionError(
            f"--host {host} is reached from other machines, and there is no key; set {KEY}, or give --no-key, with which "
            "whoever reaches it may use this server"
        )
    return made


def _server(
    checkpoint: Path, drafters: list[str], name: str | None, drain: int, limits: dict[str, Any], given: dict[str, Any]
) -> "Server":
    """The server, loaded and checked, not yet listening. Raises: ParameterError, ModuleNotFoundError, and what loading
    raises."""
    from ..models.build import Parts
    from ..serve.app import Limits, Service
    from ..serve.chat.template import template_of
    from ..serve.logits import Logged
    from ..serve.server import Server, to_stderr

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
