"""Norms that the engine leaves to the projections behind them: what it leaves, and that rows keep their bits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssmspec_fast.bench.models import random_model
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.sequences import new_sequences
from ssmspec_fast.engine.window import Window
from ssmspec_fast.layers.linear import Linear, Product
from ssmspec_fast.layers.norm import Norm
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations import Gate, Weighted
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_fast.operations.triton_ops import ROWS, TritonOperations
from ssmspec_fast.operations.triton_recurrences import SSD
from ssmspec_fast.operations.triton_rows import FEW
from tests.fast.on_kernels import logits

K, U, O = 40, 33, 21
EPS = 1e-5


def drawn(*shape: int, seed: int = 0, form: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(
        torch.empty(0).device, form
    )


def through(operations: Any, x: torch.Tensor, residual: torch.Tensor, form: torch.dtype = torch.bfloat16) -> tuple[Any, ...]:
    """A product into the residual stream, the norm, and the projection behind it: what was normed, the sum, the outputs."""
    W, behind, weight = (drawn(*s, seed=i, form=form) for i, s in enumerate(((U, K), (O, U), (U,)), 1))
    kept = residual.clone()
    u = Product(Linear(W), x).normed(Norm(weight, EPS), kept, operations)
    return u, kept, Linear(behind)(u, operations)


def check_bits(operations: Any, rows: int) -> None:
    """Alone and in any batch, in as many launches as it takes."""
    x, residual = drawn(rows, 1, K, seed=7), drawn(rows, 1, U, seed=8, form=torch.float32)
    u, kept, y = through(operations, x, residual)
    assert isinstance(u, Weighted)
    for row in (0, rows // 2, rows - 1):
        at = slice(row, row + 1)
        _, one, alone = through(operations, x[at], residual[at])
        assert torch.equal(kept[at], one)
        assert torch.equal(y[at], alone)


@pytest.mark.parametrize("rows", [1, FEW, ROWS, ROWS + 5])
def test_bitwise_a_row_has_the_same_bits_in_any_number_of_rows(rows: int) -> None:
    check_bits(TritonOperations(bitwise=True), rows)


def test_what_is_folded_is_a_norm_and_a_product() -> None:
    """Within three roundings to bf16 of the largest output: of the product, of the norm, of the outputs."""
    x, residual = drawn(3, 2, K, seed=7), drawn(3, 2, U, seed=8, form=torch.float32)
    _, kept, y = through(TritonOperations(), x, residual)
    _, kept_there, y_there = through(TorchOperations(), x, residual)
    for a, b in ((kept, kept_there), (y, y_there)):
        assert float((a.float() - b.float()).abs().max()) <= 3 * 2.0**-8 * float(b.float().abs().max())


LEFT: dict[str, tuple[Callable[[], Any], torch.dtype, int]] = {
    "more rows than the kernel is faster for": (TritonOperations, torch.bfloat16, FEW + 1),
    "fp16, which may overflow": (lambda: TritonOperations(bitwise=True), torch.float16, 2),
    "PyTorch": (TorchOperations, torch.bfloat16, 2),
}


@pytest.mark.parametrize("name", LEFT)
def test_elsewhere_the_norm_is_taken_at_once(name: str) -> None:
    make, form, rows = LEFT[name]
    u, *_ = through(make(), drawn(rows, 1, K, seed=7, form=form), drawn(rows, 1, U, seed=8, form=torch.float32), form)
    assert isinstance(u, torch.Tensor)


def test_a_scaled_product_and_a_centred_norm_are_taken_at_once() -> None:
    x, operations = drawn(2, 1, K), TritonOperations()
    layer, weight = Linear(drawn(U, K, seed=1)), drawn(U, seed=3)
    for product, norm in (
        (Product(layer, x, 0.5), Norm(weight, EPS)),
        (Product(layer, x), Norm(weight, EPS, bias=weight)),
    ):
        assert isinstance(product.normed(norm, torch.zeros(2, 1, U), operations), torch.Tensor)


def test_a_product_whose_bits_follow_the_number_of_rows_is_caught() -> None:
    class Planted(TritonOperations):
        """Sums in fp64 where several rows come."""

        def linear(self, x: Any, W: torch.Tensor, bias: Any = None, *, out: Any = None) -> torch.Tensor:
            y = super().linear(x, W, bias, out=out)
            return y if len(y) == 1 else y.nextafter(torch.full_like(y, 9.0))

    with pytest.raises(AssertionError):
        check_bits(Planted(bitwise=True), 3)


class CountingSSD(SSD):
    """How often the gate of a token was folded."""

    folded = 0

    def gated(self, *args: Any, **kwargs: Any) -> Weighted | None:
        found = super().gated(*args, **kwargs)
        self.folded += found is not None
        return found

    def gated_window(self, *args: Any, **kwargs: Any) -> Weighted | None:
        found = super().gated_window(*args, **kwargs)
        self.folded += found is not None
        return found


class ForgetfulSSD(SSD):
    """Leaves the norm's weight out."""

    def gated_window(self, S: Any, inputs: Any, params: Any, gate: Gate, **more: Any) -> Weighted | None:
        return super().gated_window(S, inputs, params, gate._replace(weight=torch.ones_like(gate.weight)), **more)

    def gated(self, S: Any, inputs: Any, params: Any, gate: Gate, *, slots: Any) -> Weighted | None:
        return super().gated(S, inputs, params, gate._replace(weight=torch.ones_like(gate.weight)), slots=slots)


class Counting(TritonOperations):
    def __init__(self, bitwise: bool = False) -> None:
        super().__init__(bitwise)
        self.counting = CountingSSD(bitwise)
        self.recurrences |= {"ssd": self.counting}

    @property
    def folded(self) -> int:
        return self.counting.folded


class Forgetful(TritonOperations):
    def __init__(self) -> None:
        super().__init__()
        self.recurrences |= {"ssd": ForgetfulSSD(False)}


def apart(operations: Any) -> float:
    """The largest relative difference of logits, of single tokens behind a prefill, to those of PyTorch; in fp32."""
    model = random_model("tiny", torch.float32, str(torch.empty(0).device))
    for i, mixer in enumerate(model.mixers):
        mixer.norm.copy_(1 + 0.5 * drawn(*mixer.norm.shape, seed=i))  # type: ignore[union-attr]
    prompt = [3, 14, 15, 9, 26, 5]
    wanted = logits(model, prompt, TorchOperations(), 3)
    return float((logits(model, prompt, operations, 3) - wanted).abs().max() / wanted.abs().max())


def windows_apart(operations: Any, method: Any, parents: list[int] | None) -> float:
    """The same of a window of five behind a prompt, as a chain or as a tree."""

    def said(by: Any) -> torch.Tensor:
        device = torch.empty(0).device
        model = random_model("tiny", torch.float32, str(device))
        for i, mixer in enumerate(model.mixers):
            mixer.norm.copy_(1 + 0.5 * drawn(*mixer.norm.shape, seed=i))  # type: ignore[union-attr]
        decoder, sequences = Decoder(model, method(), by, slots=1, cache=24, window=5), new_sequences(1, 29, (), (), device)
        sequences.add(0, [3, 14, 15, 9], 9, 0)
        decoder.prefill([[3, 14, 15, 9]], [0])
        tree = None if parents is None else torch.tensor([parents])
        window = Window(torch.tensor([[9, 26, 5, 35, 8]]), torch.zeros(1, dtype=torch.int64), None, tree)
        return decoder.verify(decoder.feed(window, sequences))

    wanted = said(TorchOperations())
    return float((said(operations) - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(
    ("method", "parents"),
    [(ActivationReplay, None), (Joint, None), (Tree, [-1, 0, 0, 1, 2])],
    ids=["replay", "joint", "tree"],
)
@torch.no_grad()
def test_windows_whose_gates_are_folded_have_the_logits_of_pytorch(method: Any, parents: list[int] | None) -> None:
    operations = Counting()
    assert windows_apart(operations, method, parents) <= 1e-4
    assert operations.folded == 2
    assert windows_apart(Forgetful(), method, parents) > 1e-2
    bitwise = Counting(bitwise=True)
    assert windows_apart(bitwise, method, parents) <= 1e-4
    assert bitwise.folded == 0


@torch.no_grad()
def test_plain_tokens_whose_gates_are_folded_have_the_logits_of_pytorch() -> None:
    """Some hundred roundings to fp32 deep: 1e-4, as in `tests/fast/test_triton`. A weight left out moves them by far more."""
    operations = Counting()
    assert apart(operations) <= 1e-4
    assert operations.folded == 2 * 3  # layers, tokens
    assert apart(Forgetful()) > 1e-2


def test_bitwise_no_gate_is_folded() -> None:
    operations = Counting(bitwise=True)
    assert apart(operations) <= 1e-4
    assert operations.folded == 0
