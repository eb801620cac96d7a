"""Write a case to a file (inputs, expected outputs with bounds, actual outputs), with a script that loads it."""

from io import BytesIO
from pathlib import Path

import numpy as np

from ssmspec_ref.contract import Capability

from ..cases import Case
from ..errors import ReportError
from ..judge.columns import as_kept
from ..progress import files
from ..run.calls import bench_of
from ..suite.specification import Specification
from .leaves import leaves, named

SCRIPT = '''"""One case of the conformance suite: {case}"""
import numpy as np

case = np.load(__file__.replace(".py", ".npz"), allow_pickle=False)
inputs = {{name[3:]: case[name] for name in case if name.startswith("in.")}}
print({{name: value.shape or value.item() for name, value in inputs.items()}})
for name in [key[9:] for key in case if key.startswith("expected.")]:
    expected, bound, got = case["expected." + name], case["bound." + name], case.get("got." + name)
    print(name, expected.shape, "not given" if got is None else "wrong in %d places" % (abs(got - expected) > bound).sum())
'''


def dump(folder: Path, specification: Specification, capability: Capability, case: Case) -> Path:
    """Call a case once more and write it to a folder. Missing outputs, or outputs that are not arrays, are left out.

    Inputs are named by their path: in.S, in.window.x, in.rounds.0.window.x. Raises: ReportError for a folder that cannot be
    written.
    """
    arguments = specification.draw(case, capability.contract)
    answer = bench_of(capability).start(specification, capability, arguments, False, False)()
    arrays, owners = {}, named(case.operation, arguments)
    for leaf in leaves(case.operation, arguments):
        for number, value in enumerate(leaf.values):
            name = ".".join([owners[leaf.path[0]], *(str(number if step == "*" else step) for step in leaf.path[1:])])
            if value is not None:
                arrays[f"in.{name}"] = np.asarray(value)
    expected = as_kept(specification.expected(arguments, capability.contract, answer.came.used), answer.came.outputs)
    for number, want in enumerate(expected):
        arrays |= {f"expected.{want.name}": want.value, f"bound.{want.name}": want.bound}
        came = answer.came.outputs[number] if number < len(answer.came.outputs) else None
        if isinstance(came, np.ndarray):
            arrays[f"got.{want.name}"] = came
    identity = specification.identify(case)
    file = folder / f"{identity.replace('/', '-').replace(',', '_').replace('=', '_')}.npz"
    packed = BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(file, packed.getvalue())
        files.write(file.with_suffix(".py"), SCRIPT.format(case=identity))
    except OSError as error:
        raise ReportError(f"{file} cannot be written ({error.strerror}); name another folder for --dump") from error
    return file
