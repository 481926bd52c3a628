"""Lumina-mGPT as its authors run it: transformers' Chameleon without a cache, one id at a time. For tests only."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn

BOS, IMAGE_END, IMAGE_START, TURN_END, NEW_LINE, SIZE_ZERO = 0, 8196, 8197, 8710, 8803, 8804


class Oracle:
    """transformers' ChameleonModel and the whole output head, holding tensors of the original folder."""

    def __init__(self, state: dict[str, Tensor], dtype: torch.dtype, kv_heads: int = 4) -> None:
        import transformers

        config = transformers.ChameleonConfig(
            vocab_size=9216, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=kv_heads, rms_norm_eps=1e-5, max_position_embeddings=4096, rope_theta=10000.0,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, vocabulary_map={"<image>": 8711},
            attn_implementation="sdpa",
            vq_config={"base_channels": 32, "num_embeddings": 8, "embed_dim": 8, "latent_channels": 8},
        )  # fmt: skip
        self.model = transformers.ChameleonModel(config).eval()
        inner = {name.removeprefix("model."): t for name, t in state.items() if name.startswith("model.")}
        for name, tensor in inner.items():
            if "_norm." in name:  # one row for all heads on disk, one a head in transformers
                heads = 4 if "q_norm" in name else kv_heads
                inner[name] = tensor.expand(heads, -1) if tensor.shape[0] == 1 else tensor
        missing, unexpected = self.model.load_state_dict(inner, strict=False)
        assert not unexpected
        assert all(name.startswith("vqmodel.") for name in missing)
        frequencies = copy.deepcopy(self.model.rotary_emb)
        self.model.to(dtype)
        self.model.rotary_emb = frequencies  # stays in float32
        self.head = state["lm_head.weight"].to(dtype)
        if dtype == torch.float64:
            self._norms_in_float64()
        self._features = torch.empty(0)
        self.model.norm.register_forward_hook(self._keep_input)

    def _norms_in_float64(self) -> None:
        """transformers' RMSNorm always computes in float32; torch's own does not."""
        for module in list(self.model.modules()):
            for name, child in list(module.named_children()):
                if type(child).__name__ == "ChameleonRMSNorm":
                    norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                    norm.weight = child.weight
                    setattr(module, name, norm)

    def _keep_input(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._features = inputs[0]

    @torch.no_grad()
    def __call__(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Features before the last norm [n, hidden] and logits over the whole vocabulary [n, vocabulary]."""
        out = self.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
        return self._features[0], (out @ self.head.T)[0]


def prompt_ids(folder: Path, prompt: str, width: int, height: int) -> list[int]:
    """What the authors' code feeds: bos, then wrapper, prompt and separator read as one text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = f"Generate an image of {width}x{height} according to the following prompt:\n{prompt}<reserved08706>"
    return [BOS, *tokenizer.encode(text, add_special_tokens=False).ids]


def greedy(oracle: Oracle, prompt: list[int], rows: int, cols: int, guidance: float) -> list[int]:
    """The ids after the prompt, from begin to end of image: the largest allowed guided logit at every place."""
    drawn = [IMAGE_START, SIZE_ZERO + rows // 2, SIZE_ZERO + cols // 2]
    while drawn[-1] != IMAGE_END:
        conditional = oracle(prompt + drawn)[1][-1]
        unconditional = oracle(drawn)[1][-1]
        scores = unconditional + guidance * (conditional - unconditional)
        count = len(drawn) - 3 + 1
        allowed = torch.full_like(scores, -math.inf)
        if count % (cols + 1) == 0:
            allowed[NEW_LINE] = 0
        elif count == (cols + 1) * rows + 1:
            allowed[IMAGE_END] = 0
        else:
            allowed[4 : 8195 + 1] = 0
        drawn.append(int((scores + allowed).argmax()))
    return drawn
