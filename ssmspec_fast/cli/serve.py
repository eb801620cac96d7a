"""`ssmspec serve`: serves a checkpoint at an OpenAI-compatible endpoint."""

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmspec_ref.errors import ParameterError, SpecError

from .generate import WITHOUT_A_MODEL, shipped
from .refusal import refused

if TYPE_CHECKING:
    from ..serve.server import Server

app = typer.Typer(pretty_exceptions_enable=False, help="Serve a checkpoint over HTTP, in the form of OpenAI's API.")


@app.callback(invoke_without_command=True)
def serve(
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a Hugging Face checkpoint, or a name that ships with ssmspec: mamba2.")
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help="A checkpoint's folder or name, ngram, ngram+bigram or lookup. Omit for plain decoding."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="How drafts are verified and rejected ones undone; see docs/generate.md.")
    ] = None,
    acceptance: Annotated[
        str,
        typer.Option(help="Acceptance rule: naive (with a seed, the tokens of plain decoding), multi-step, rejection."),
    ] = "naive",
    mode: Annotated[str, typer.Option(help="bitwise: the bits of plain decoding; fast: may round differently.")] = "bitwise",
    drafts: Annotated[int, typer.Option(help="Draft tokens per step.")] = 4,
    rows: Annotated[int, typer.Option(help="Draft chains per prompt (ngram only).")] = 1,
    tree: Annotated[str | None, typer.Option(help="Draft a tree: a, children per level (3,2,1) or beams (2x4).")] = None,
    slots: Annotated[int, typer.Option(help="Completions decoded at once.")] = 8,
    context: Annotated[int, typer.Option(help="Most tokens of a prompt and its completion together.")] = 2048,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="Data type of the weights, such as bfloat16. Omit for the stored one.")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="Memory limit in bytes. Default: what is free.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model for clients. Default: the folder's.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every network of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="SSMSPEC_API_KEY", help="Key that clients must send; better set in the environment."),
    ] = None,
    queue: Annotated[int, typer.Option(help="Completions that may wait; one more is answered by 429.")] = 256,
    most_choices: Annotated[int, typer.Option(help="Most completions of one request: prompts times n.")] = 16,
    most_bytes: Annotated[int, typer.Option(help="Most bytes of one request.")] = 1 << 20,
    drain: Annotated[int, typer.Option(help="Seconds that running requests may take after SIGTERM or Ctrl-C.")] = 30,
) -> None:
    """Serve until SIGTERM or Ctrl-C. The address goes to standard error once the server listens."""
    limits = {"queue": queue, "choices": most_choices, "bytes": most_bytes, "key": api_key}
    drafting = {"drafts": drafts, "rows": rows, "tree": tree}
    room = {"slots": slots, "cache": context, "mode": mode, "device": device, "dtype": dtype, "limit": memory}
    try:
        for option, number, least in (("context", context, 2), ("queue", queue, max(1, most_choices)), ("drain", drain, 0)):
            if number < least:
                raise ParameterError(f"--{option} is {number}; it must be {least} or more")
        if most_choices < 1 or most_bytes < 1:
            raise ParameterError(f"--most-choices is {most_choices} and --most-bytes is {most_bytes}; both must be 1 or more")
        if api_key == "":
            raise ParameterError("the API key is empty; give one, or unset SSMSPEC_API_KEY")
        if checkpoint is None:
            raise ParameterError("no checkpoint was given; give --checkpoint FOLDER, or the name of one that ships")
        given = {"method": method, "acceptance": acceptance} | drafting | room
        server = _server(checkpoint, drafter, name, drain, limits, given)
        bound = _socket(host, port)
        if api_key is None and not ip_address(bound.getsockname()[0]).is_loopback:
            typer.echo(f"warning: no --api-key; whoever reaches {host} can use this server", err=True)
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error, "serve") from error
    server.run(sockets=[bound])


def _socket(host: str, port: int) -> socket.socket:
    """Raises: ParameterError."""
    if not 0 <= port < 2**16:
        raise ParameterError(f"cannot listen at {host} port {port}; give --port 0 (a free one) to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ParameterError(f"cannot listen at {host} port {port}: {error}; give another --host or --port") from error


def _server(
    checkpoint: Path, drafter: str | None, name: str | None, drain: int, limits: dict[str, Any], given: dict[str, Any]
) -> "Server":
    """The server, loaded and checked, not yet listening. Raises: ParameterError, ModuleNotFoundError, and what loading
    raises."""
    from ..models.build import Parts
    from ..serve.app import Limits, Service
    from ..serve.logits import Logged
    from ..serve.server import Server, to_stderr
    from ..serve.template import template_of

    folder, helper = shipped(checkpoint) or checkpoint, drafter and str(shipped(Path(drafter), WITHOUT_A_MODEL))
    parts = Parts(folder, helper, engine=Logged, **given)
    generator = parts.load()
    speculation = None if drafter is None else f"{drafter}:{given['tree'] or given['drafts']}"
    about = {"dtype": str(parts.type).removeprefix("torch."), "speculation": speculation}
    called = folder.resolve().name if name is None else name
    service = Service(generator, called, Limits(**limits), template_of(folder, generator.tokenizer), about)
    return Server(service, to_stderr(called), drain)
