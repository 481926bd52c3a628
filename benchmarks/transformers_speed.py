"""Our plain decoding against transformers' ``generate`` with the same weights, alternated in one process.

Run: ``python -m benchmarks.transformers_speed``. The embedded model's weights go into a ``LlamaForCausalLM`` whose
rotary table is the embedded model's. Greedy codes of both must be equal, so both do the same work; then both sample
(temperature, top-p) without guidance, which transformers would compute in a second forward a token. Ours decodes the
pixels too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from ssd_core import AR, Sampling, SSDError, generate, load_backbone
from ssd_core.families.emoji import EmojiBackbone
from ssd_core.transformer import rope_table
from ssd_core.writing import write

PROMPT = "two apples on a beach"


class _Table(nn.Module):
    """Stands in for Llama's rotary embedding: the n-th token's place in the picture decides, not n."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        super().__init__()
        half = sin.shape[-1] // 2
        self.cos, self.sin = cos, torch.cat((-sin[:, :half], sin[:, half:]), -1)  # both [length, head_dim], no signs

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[position_ids].to(x.dtype), self.sin[position_ids].to(x.dtype)


class _Rows(LogitsProcessor):
    """An end of line after every row and nowhere else."""

    def __init__(self, begin: int, cols: int, end_of_line: int) -> None:
        self._begin, self._cols, self._end_of_line = begin, cols, end_of_line

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = (input_ids.shape[1] - self._begin) % (self._cols + 1) == self._cols
        scores = scores.clone()
        if forced:
            scores[:, : self._end_of_line] = -torch.inf
        else:
            scores[:, self._end_of_line :] = -torch.inf
        return scores


def as_llama(backbone: EmojiBackbone, grid: tuple[int, int]) -> LlamaForCausalLM:
    """The same network in transformers; its vocabulary is the codes and the end of line, then what prompts use."""
    spec, vocabulary = backbone.decoder.spec, backbone.embedding.num_embeddings
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.norm_eps,
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    state = {
        "model.embed_tokens.weight": backbone.embedding.weight,
        "model.norm.weight": backbone.norm.weight,
        "lm_head.weight": torch.cat([backbone.head.weight, torch.zeros(vocabulary - backbone.codes, spec.hidden)]),
    }
    width = spec.kv_heads * spec.head_dim
    for index, layer in enumerate(backbone.decoder.layers):
        own: Any = layer
        q, k, v = own.attention.qkv.weight.split([spec.heads * spec.head_dim, width, width])
        gate, up = own.mlp.gate_up.weight.chunk(2)
        parts = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "mlp.gate_proj": gate}
        parts |= {"self_attn.o_proj": own.attention.out.weight, "mlp.up_proj": up, "mlp.down_proj": own.mlp.down.weight}
        parts |= {"input_layernorm": own.attention_norm.weight, "post_attention_layernorm": own.mlp_norm.weight}
        state |= {f"model.layers.{index}.{name}.weight": value for name, value in parts.items()}
    model.load_state_dict(state)
    positions = torch.cat((backbone.prompt_positions(), backbone.stream_positions(grid)))
    model.model.rotary_emb = _Table(*rope_table(positions, spec.head_dim, backbone.rope_theta))
    return model


def transformers_codes(
    model: LlamaForCausalLM, backbone: EmojiBackbone, prompt: str, grid: tuple[int, int], greedy: bool
) -> Tensor:
    """Codes int64 [rows, cols] drawn by transformers."""
    ids = backbone.prompt_ids([prompt], "", grid, guided=False)
    rows = LogitsProcessorList([_Rows(ids.shape[1], grid[1], backbone.codes)])
    sampling = backbone.default_sampling
    chosen = {"do_sample": False} if greedy else {
        "do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k,
    }  # fmt: skip
    length = backbone.stream(grid).length
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, logits_processor=rows, **chosen
    )
    return backbone.stream(grid).to_grid(out[:, ids.shape[1] :])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=int, nargs=2, default=(24, 24))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("out"), help="folder for transformers-speed.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    grid = (options.grid[0], options.grid[1])
    backbone = load_backbone(dtype="float32")
    assert isinstance(backbone, EmojiBackbone)
    model = as_llama(backbone, grid)

    def ours(sampling: Sampling) -> Tensor:
        return generate(backbone, PROMPT, schedule=AR(), sampling=sampling, grid=grid).tokens[0]

    greedy = ours(Sampling(temperature=0.0, guidance=1.0))
    if not torch.equal(greedy, transformers_codes(model, backbone, PROMPT, grid, greedy=True)):
        raise SSDError("greedy codes differ: the two are not the same network, so their speeds mean nothing")
    plain = Sampling(1.0, backbone.default_sampling.temperature, top_p=backbone.default_sampling.top_p)
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(plain),
        "transformers": lambda: transformers_codes(model, backbone, PROMPT, grid, greedy=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(options.repeats):
        for name in sorted(sides, reverse=repeat % 2 == 1):
            start = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - start)
    middle = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["transformers"], strict=True))
    found = {
        "grid": grid, "seconds": middle, "ratio": ratio, "repeats": options.repeats, "greedy_codes_equal": True,
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    text = json.dumps(found, indent=1)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    write(options.results / "transformers-speed.json", (text + "\n").encode())


if __name__ == "__main__":
    main()
