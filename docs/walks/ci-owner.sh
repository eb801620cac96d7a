#!/usr/bin/env bash
# The owner of a CI: pytest in an empty repository, green and red seen.
# Runs in an empty folder next to a clone named ssmspec. Limit: 600 seconds, installation included.
set -euo pipefail

python3 -m venv .venv
.venv/bin/pip install --quiet ../ssmspec pytest
python=.venv/bin/python

mkdir -p src
.venv/bin/ssmspec conform init src/my_kernels.py
cat > pytest.ini <<'INI'
[pytest]
pythonpath = src
ssmspec_adapter = my_kernels:adapter
ssmspec_report = conformance-report
INI
$python -m pytest -q --junitxml junit.xml
test -s conformance-report/report.html

sed -i.right 's/np.exp(dt \* A)/np.exp(-dt * A)/' src/my_kernels.py
! cmp -s src/my_kernels.py src/my_kernels.py.right
if $python -m pytest -q -rf > red.txt; then exit 1; fi
cat red.txt
if $python -m pytest -q --lf; then exit 1; fi                # only what failed
if $python -m pytest -q "$(sed -n 's/^FAILED \([^ ]*\).*/\1/p' red.txt | head -1)"; then exit 1; fi   # an id, pasted

mv src/my_kernels.py.right src/my_kernels.py
$python -m pytest -q
