#!/usr/bin/env bash
# The author of an engine: is it lossless? A planted bug found. Runs in an empty folder, with ssmspec installed.
# Limit: 300 seconds.
set -euo pipefail

ssmspec conform init my_engine.py --level generator
ssmspec conform run --adapter my_engine:adapter | tee green.txt
grep -q "Nothing failed." green.txt

# The bug: a draft is emitted although the model says otherwise.
sed -i.right 's/tokens.append(right)$/tokens.append(draft)/' my_engine.py
! cmp -s my_engine.py my_engine.py.right
if ssmspec conform run --adapter my_engine:adapter > red.txt; then exit 1; fi
cat red.txt
grep -q "generate.greedy" red.txt

# The state under the tokens: windows verified, accepted in part, and rolled back.
ssmspec conform init my_decoder.py --level decoder
ssmspec conform run --adapter my_decoder:adapter --tier smoke
sed -i.right 's/kept\[advanced, /kept[np.minimum(advanced + 1, len(kept) - 1), /' my_decoder.py
! cmp -s my_decoder.py my_decoder.py.right
if ssmspec conform run --adapter my_decoder:adapter --tier smoke > rollback.txt; then exit 1; fi
cat rollback.txt

# A checkpoint, drafted for by a smaller one and by n-grams of the text: identical to plain decoding?
ssmspec generate --checkpoint mamba2 --drafter mamba2-drafter --prompt "def mean(values):" --compare --max-tokens 24 2>&1 | tee same.txt
grep -q "identical to plain decoding: 1 of 1 prompts" same.txt
cp -r "$(python -c 'from ssmspec_fast.cli.generate import SHIPPED; print(SHIPPED)')/mamba2" own
printf 'def mean(values):\nfor x in [1, 2, 1, 2, 1, 2]:\n' > prompts.txt
ssmspec generate --checkpoint ./own --drafter ngram --mode fast --prompts prompts.txt --compare --max-tokens 24 2>&1 | tee own.txt
grep -q "identical to plain decoding: 2 of 2 prompts" own.txt

# Compared wrongly: nothing is drafted, so nothing is compared.
if ssmspec generate --checkpoint ./own --prompt x --compare 2> refused.txt; then exit 1; fi
grep "give one" refused.txt
