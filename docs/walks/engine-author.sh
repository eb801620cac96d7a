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

# A checkpoint with a smaller drafter, and with n-grams of the text: identical to plain decoding?
ssmspec generate --checkpoint mamba2 --drafter mamba2-drafter --prompt "def mean(values):" --compare --max-tokens 24 2>&1 | tee same.txt
grep -q "identical to plain decoding: 1 of 1 prompts" same.txt
cp -r "$(python -c 'from ssmspec_fast.cli.shipped import SHIPPED; print(SHIPPED)')/mamba2" shipped
printf 'def mean(values):\nfor x in [1, 2, 1, 2, 1, 2]:\n' > prompts.txt
ssmspec generate --checkpoint ./shipped --drafter ngram --mode fast --prompts prompts.txt --compare --max-tokens 24 2>&1 | tee shipped.txt
grep -q "identical to plain decoding: 2 of 2 prompts" shipped.txt

# An own checkpoint: random weights, as transformers saves them, without a tokenizer. It is its own drafter.
python - <<'PYTHON'
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

torch.manual_seed(0)
config = Mamba2Config(
    vocab_size=256, hidden_size=64, state_size=16, num_heads=8, head_dim=16, n_groups=1, num_hidden_layers=2
)
Mamba2ForCausalLM(config).save_pretrained("own")
PYTHON
if ssmspec generate --checkpoint own --drafter own --prompt "def mean(values):" --compare 2> text.txt; then exit 1; fi
grep 'give token ids: --prompts FILE with lines like {"prompt": \[1, 2, 3\]}' text.txt
echo '{"prompt": [5, 6, 7, 5, 6]}' > prompts.jsonl
ssmspec generate --checkpoint own --drafter own --prompts prompts.jsonl --compare --max-tokens 48 2>&1 | tee own.txt
grep -q "identical to plain decoding: 1 of 1 prompts" own.txt
ssmspec generate --checkpoint own --drafter ngram --prompts prompts.jsonl --compare --max-tokens 48 2>&1 | tee ngram.txt

# Compared wrongly: nothing is drafted, so nothing is compared.
if ssmspec generate --checkpoint ./shipped --prompt x --compare 2> refused.txt; then exit 1; fi
grep "give one" refused.txt
