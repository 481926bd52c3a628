"""transformers' own decoder classes in the loop that users run, on the very weights of our backbone.

Janus: both guidance rows in one batch, a static cache, as ``JanusForConditionalGeneration.generate`` does it. Emu3 and
Lumina-mGPT: guidance through ``generate(guidance_scale=...)``, which feeds the unconditional row by itself: two
forwards a token, a growing cache for each. The same loop with both rows in one batch is timed too. What ``generate``
does besides (processors, stopping rules, masks of allowed tokens) is left out: the real loop is slower than this one.
So is cuDNN's attention (``gpu.py`` switches it off for all), which would make a plan for every length of the cache.
"""

from __future__ import annotations

import importlib
import inspect
import time
from typing import Any

import torch
from torch import Tensor, nn

from ssd_core import Backbone, SSDError
from ssd_core.sampling import guide, truncate
from ssd_core.transformer import DecoderSpec

from .gpu_budget import Clock
from .gpu_shapes import Shape
from .gpu_span import wait

_CLASSES = {
    "janus": ("llama.modeling_llama", "LlamaModel", "LlamaConfig"),
    "lumina": ("chameleon.modeling_chameleon", "ChameleonModel", "ChameleonConfig"),
    "emu3": ("emu3.modeling_emu3", "Emu3TextModel", "Emu3TextConfig"),
}
LOOPS = {"janus": ("static", True), "lumina": ("dynamic", False), "emu3": ("dynamic", False)}
"""Model -> (cache, both guidance rows in one batch) of its own ``generate``."""


def twin(shape: Shape, backbone: Backbone) -> nn.Module:
    """transformers' decoder (final norm included) whose weights are views of the backbone's.

    Raises SSDError when transformers is missing or has no such model.
    """
    try:
        config, model = _empty(shape, backbone.decoder.spec)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SSDError(f"nothing to compare with: {error}; install a transformers that has this model") from error
    if hasattr(model, "vqmodel"):
        model.vqmodel = nn.Identity()  # reads pictures, which nobody asks of it here
    rotary = next(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    model.rotary_emb = type(rotary)(config=config).to(backbone.device)
    _share(model, backbone)
    left = [name for name, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]
    if left:
        raise SSDError(
            f"this transformers' {type(model).__name__} has weights that are not known here: {left[:4]}; use another"
        )
    return model.requires_grad_(False).eval()


def _empty(shape: Shape, spec: DecoderSpec) -> tuple[Any, Any]:
    """transformers' config, and its model on the meta device."""
    import transformers

    place, model_name, config_name = _CLASSES[shape.name]
    module = importlib.import_module(f"transformers.models.{place}")
    config = getattr(transformers, config_name)(
        vocab_size=shape.llama.vocabulary, hidden_size=spec.hidden, intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers, num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads,
        max_position_embeddings=shape.llama.positions, rms_norm_eps=spec.norm_eps, pad_token_id=0, bos_token_id=0,
        eos_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": shape.llama.rope_theta},
        attn_implementation="sdpa", rope_theta=shape.llama.rope_theta, **_extra(shape),
    )  # fmt: skip
    with torch.device("meta"):
        return config, getattr(module, model_name)(config)


def _extra(shape: Shape) -> dict[str, Any]:
    if shape.name != "lumina":
        return {}
    vq = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "latent_channels": 32, "resolution": 32}
    return {"vq_config": vq, "vocabulary_map": {"<image>": 3, "IMGIMGAZ": 4}, "swin_norm": False}


def _share(model: Any, backbone: Any) -> None:
    """Makes views of the backbone's fused matrices the parameters of transformers' separate ones."""

    def give(owner: Any, value: Tensor, name: str = "weight") -> None:
        setattr(owner, name, nn.Parameter(value, requires_grad=False))

    spec = backbone.decoder.spec
    give(model.embed_tokens, backbone.embedding.weight)
    give(model.norm, backbone.norm.weight)
    sizes = [spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.head_dim]
    for theirs, ours in zip(model.layers, backbone.decoder.layers, strict=True):
        for name, part in zip("qkv", ours.attention.qkv.weight.split(sizes), strict=True):
            give(getattr(theirs.self_attn, f"{name}_proj"), part)
        give(theirs.self_attn.o_proj, ours.attention.out.weight)
        gate, up = ours.mlp.gate_up.weight.chunk(2)
        give(theirs.mlp.gate_proj, gate)
        give(theirs.mlp.up_proj, up)
        give(theirs.mlp.down_proj, ours.mlp.down.weight)
        give(theirs.input_layernorm, ours.attention_norm.weight)
        give(theirs.post_attention_layernorm, ours.mlp_norm.weight)
        if spec.qk_norm:
            for letter in "qk":
                own, norm = getattr(ours.attention, f"{letter}_norm"), getattr(theirs.self_attn, f"{letter}_norm")
                give(norm, own.weight)
                give(norm, own.bias, "bias")


class Loop:
    """Plain decoding with guidance, one token a turn. ``kind``: "static" or "dynamic" cache.

    ``batched``: both guidance rows in one forward, else one after the other with a cache each. ``head``: the output
    head as the model has it, over its whole vocabulary where it has one for all.
    """

    def __init__(self, shape: Shape, backbone: Any, model: Any, kind: str, batched: bool, length: int) -> None:
        self._backbone, self._model, self._batched = backbone, model, batched
        self._sampling = backbone.default_sampling
        names = inspect.signature(model.forward).parameters
        self._keyword = "cache" if "cache" in names else "past_key_values"
        rows = (2,) if batched else (1, 1)
        self._rows = rows
        self._caches = [self._new_cache(kind, length) for _ in rows]
        # Janus has an output head of its own for codes; the others' covers the whole vocabulary. Its values do not
        # matter for time, so the embedding, which has the same shape, stands for it.
        self._full_head = None if shape.name == "janus" else backbone.embedding.weight
        self._generator = torch.Generator(backbone.device).manual_seed(5)

    def _new_cache(self, kind: str, length: int) -> Any:
        import transformers

        if kind == "dynamic":
            return transformers.DynamicCache(config=self._model.config)
        return transformers.StaticCache(config=self._model.config, max_cache_len=length)

    def _feed(self, embeddings: Tensor) -> Tensor:
        """Embeddings [2, q, hidden] -> normed features [2, hidden] of the last position."""
        out, row = [], 0
        for cache, count in zip(self._caches, self._rows, strict=True):
            part = embeddings[row : row + count]
            out.append(self._model(inputs_embeds=part, use_cache=True, **{self._keyword: cache})[0][:, -1])
            row += count
        return torch.cat(out)

    def fill(self, length: int) -> None:
        """Feeds ``length`` codes, others to each guidance row, so that the next step sees that many keys."""
        line = torch.arange(length, device=self._backbone.device)
        codes = torch.stack((line, line + 1)) % self._backbone.codes
        for part in codes.split(512, dim=1):
            self._features = self._feed(self._backbone.embed(part))

    def step(self) -> Tensor:
        """Draws a code int64 [1] and feeds it."""
        backbone = self._backbone
        if self._full_head is None:
            logits = backbone.head_out(nn.functional.gelu(backbone.head_in(self._features)))
        else:
            logits = nn.functional.linear(self._features, self._full_head)
        guided = guide(logits[:, None], self._sampling.guidance, 2)[0]
        weights = truncate(guided, self._sampling).softmax(-1)
        code = torch.multinomial(weights, 1, generator=self._generator)[0] % backbone.codes
        self._features = self._feed(backbone.embed(code).expand(2, -1, -1))
        return code


@torch.inference_mode()
def time_loop(
    shape: Shape, backbone: Backbone, model: nn.Module, kind: str, batched: bool, length: int, whole: int, warm: int,
    steps: int, clock: Clock = time.perf_counter,
) -> float:  # fmt: skip
    """Seconds of one token behind ``length`` others; ``whole`` tokens of prompt and picture fill a static cache."""
    loop = Loop(shape, backbone, model, kind, batched, max(whole, length + warm + steps) + 1)
    loop.fill(length)
    for _ in range(warm):
        loop.step()
    wait(backbone.device)
    start = clock()
    for _ in range(steps):
        loop.step()
    wait(backbone.device)
    return (clock() - start) / steps
