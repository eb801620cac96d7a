"""A checkpoint as GGUF in float32, by llama.cpp's own converter; `build_llama` puts this file beside that.

python convert.py FOLDER FILE

Tokens are named <0>, <1>, ..: requests are token ids, and no token ends a text by itself. Of the model nothing is written
otherwise than the converter would.
"""

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "gguf-py")]


def main(folder: Path, file: Path) -> None:
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    kind: Any = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    def set_vocab(self: Any) -> None:
        size = int(self.hparams["vocab_size"])
        self.gguf_writer.add_tokenizer_model("rwkv")
        self.gguf_writer.add_token_list([f"<{n}>".encode() for n in range(size)])
        self.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * size)

    named: dict[str, Any] = {"set_vocab": set_vocab, "model_arch": kind.model_arch}
    if getattr(kind, "supports_mtp_export", False):
        named["no_mtp"] = True
    with torch.inference_mode():
        type(kind.__name__, (kind,), named)(folder, gguf.LlamaFileType.ALL_F32, file, eager=True).write()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
