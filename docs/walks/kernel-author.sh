#!/usr/bin/env bash
# The author of a kernel: own SSD step judged, a planted bug found and understood.
# Runs in an empty folder next to a clone named ssmspec. Limit: 600 seconds, installation included.
set -euo pipefail

python3 -m venv .venv
.venv/bin/pip install --quiet ../ssmspec
ssmspec=.venv/bin/ssmspec

$ssmspec conform init my_kernels.py
$ssmspec conform check --adapter my_kernels:adapter
$ssmspec conform run --adapter my_kernels:adapter --tier smoke | tee green.txt
grep -q "Nothing failed." green.txt

# The bug: dt is not multiplied into the input.
sed -i.right 's/(dt\[..., None\] \* x)\[..., None\]/x[..., None]/' my_kernels.py
! cmp -s my_kernels.py my_kernels.py.right
if $ssmspec conform run --adapter my_kernels:adapter --tier smoke > red.txt; then exit 1; fi
cat red.txt
grep -q "smallest  ssd.step/" red.txt

# The command under the failure runs its smallest case again.
case=$(sed -n 's/.*smallest  \(ssd.step[^ ]*\).*/\1/p' red.txt | head -1)
if $ssmspec conform run --adapter my_kernels:adapter --subject ssd --case "$case"; then exit 1; fi

# Repaired.
mv my_kernels.py.right my_kernels.py
$ssmspec conform run --adapter my_kernels:adapter --subject ssd --case "$case"
