"""Kimi Delta Attention over packed trees: every node beside the oracle, another tree for every row, no state written."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ssmspec_kernels.kda import kda_tree as kernel
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_ref import tree
from ssmspec_ref.errors import ParameterError, PrecisionError, ShapeMismatch
from tests.kernels import delta_cases as cases
from tests.kernels import test_delta_tree as trees
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import assert_refused
from tests.kernels.mutants import mutated
from tests.trees import path_to


def options(**changes: Any) -> Options:
    return Options(**{"channel": True, "g": 1, "h": 2, "k": 6, "v": 9, **changes})


COVER = [
    options(t=5, h=4, g=2, poison=7.0),
    options(t=13, io="bf16", raw=True, bias=True, lower=-5.0, v=18, seed=1),
    options(t=7, raw=True, state="bf16", io="fp16", gentle=True, l2_norm=False, scale=0.7, k=35, seed=2),
    options(t=19, io="bf16", strong=True, k=4, v=5, seed=3, poison=-3.0),
    options(t=1, h=3, seed=4),
    options(b=2, t=34, io="bf16", raw=True, bias=True, lower=-2.0, k=4, v=5, seed=5),
    options(b=1, t=33, raw=True, h=1, k=4, v=5, seed=6),
]


def named(module: ModuleType) -> Any:
    """The launcher and its formula, under the names of those of the delta rule."""

    def traffic_bytes(*given: int, channel: bool, **more: int) -> int:
        assert channel
        found: int = module.traffic_bytes(*given, **more)
        return found

    return SimpleNamespace(delta_tree=module.kda_tree, traffic_bytes=traffic_bytes)


@pytest.mark.parametrize("o", COVER, ids=str)
def test_every_node_lies_within_the_bound_and_no_state_is_written(o: Options) -> None:
    trees.check(named(kernel), o, o.seed)


@pytest.mark.parametrize("tiles", [(16, 1), (16, 3), (64, 1)])
def test_other_tiles_lie_within_the_bound(tiles: tuple[int, int]) -> None:
    trees.check(named(kernel), options(t=6, io="bf16", v=37, seed=1), 1, tiles=tiles)


def test_every_path_of_a_tree_is_a_scan_along_it_exactly_on_integers() -> None:
    o = options(b=2, t=11)
    case, parents = cases.ints(o), trees.trees(o, 3)
    case.call(kernel.kda_tree, ancestors=torch.from_numpy(tree.ancestors(parents)))
    for row in range(o.b):
        for node in range(0, o.t, 3):
            if parents[row, node] != tree.PADDING:
                path = path_to(parents[row], node)
                along = {x: getattr(case, x)[row : row + 1, path].contiguous() for x in ("q", "k", "v", "g", "beta")}
                given: dict[str, Any] = {"slots": case.slots[row : row + 1], "l2_norm": False, "scale": 1.0}
                y = kda_scan(case.S, **along, **given, write_state=False)
                assert torch.equal(y[0, -1], case.out[row, node])


@pytest.mark.parametrize("o", [options(t=5, v=33), options(b=1, t=18, io="bf16", h=1)], ids=str)
def test_bytes_equal_the_formula_and_no_state_is_stored(o: Options) -> None:
    trees.check_bytes(named(kernel), o)


@pytest.mark.parametrize("many", [1, 64, 65, 256, 257, 2048])
def test_the_tiles_of_a_program_cover_all_channels(many: int) -> None:
    for v in (1, 16, 100, 128, 256):
        block, each = kernel.tile(many, v)
        assert block >= 16
        assert block & (block - 1) == 0
        assert each == 1 or block * each >= v


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"ancestors": torch.ones(3, 5, 4, dtype=torch.bool)}, ShapeMismatch, "5 rows and 4 columns"),
    ({"ancestors": torch.ones(3, 5, 5)}, PrecisionError, "ancestors is"),
    ({"g": torch.zeros(3, 5, 4)}, ShapeMismatch, "a decay per key channel"),
    ({"lower_bound": -5.0}, ParameterError, "lower_bound is given without A"),
    ({"k": torch.zeros(3, 5, 2, 6).half()}, PrecisionError, "a matrix product takes one type"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_a_wrong_argument_raises_its_error_and_nothing_is_written(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    case = cases.draw(COVER[0])
    given = {"ancestors": torch.ones(3, 5, 5, dtype=torch.bool), **changes}
    assert_refused(kernel.kda_tree, case, given, error, message)


def test_more_than_128_nodes_are_refused() -> None:
    case = cases.draw(options(b=1, t=129, h=1, k=4, v=4))
    mask = torch.ones(1, 129, 129, dtype=torch.bool)
    assert_refused(kernel.kda_tree, case, {"ancestors": mask}, ParameterError, "holds 129 nodes")


FAULTS = [
    ("tl.where(seen[:, None], G - at_key[None, :], float(\"-inf\"))", "G - at_key[None, :]", "pair_scores"),
    ("tl.where(is_j, G, 0.0), axis=0)", "tl.where(is_j, G, 0.0), axis=0) * 0.0", "pair_scores"),
    ("tl.sum(q * weight, axis=1)[:, None], to_query", "tl.sum(k * weight, axis=1)[:, None], to_query", "pair_scores"),
    ("for j in range(T):", "for j in range(T - 1):", "pair_scores"),
    ("n[:, None] > n[None, :], beta_t", "n[:, None] >= n[None, :], beta_t", None),
    ("n[:, None] > n[None, :], beta_t[:, None] * r_k[:, None] *", "n[:, None] > n[None, :], r_k[:, None] *", None),
    ("sees_x = seen_nodes(at_anc, node, t, real_x, real, stride_anc)",
     "sees_x = real_x[:, None] & real[None, :] & (node[:, None] >= t[None, :])", None),
    ("xs += (x * tl.exp(G),)", "xs += (x,)", None),
    ("read += dot_both(xs[part]", "read += dot_both(xs[0]", None),
    ("m < BLOCK_T", "m >= BLOCK_T", None),
    ("v_t - r_k[:, None] * from_key", "v_t - from_key", None),
    ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", None),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("* TILES + tile_v) * BLOCK_V", "* TILES) * BLOCK_V", None),
    ("mask=(n < T)[:, None] & in_v[None, :])", "mask=(n < T)[:, None] & (j <= V)[None, :])", None),
    ("BOUNDED=lower_bound is not None", "BOUNDED=False", None),
    ("(g, beta), A, dt_bias = formed(g, beta, A, dt_bias, lower_bound), None, None", "pass", None),
    ("beta_t = sigmoid(beta_t)", "pass", "kda_tree_kernel"),
]  # fmt: skip


def check_all(module: ModuleType) -> None:
    for i in (0, 1, 2, 3, 5):
        trees.check(named(module), COVER[i], COVER[i].seed)
    trees.check(named(module), options(t=6, io="bf16", v=37, seed=1), 1, tiles=(16, 3))


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
