"""Textbook formulas in numpy float64 and plain loops: Llama layers, rope, sampling. Written for tests only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ssd_core import Sampling

Array = Any  # numpy arrays; their own types say nothing about shapes
Weights = dict[str, Array]


def weights_of(module: torch.nn.Module) -> Weights:
    return {name: t.detach().double().numpy() for name, t in module.state_dict().items()}


def rms(x: Array, weight: Array, eps: float = 1e-6) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def angles(positions: Array, head_dim: int, theta: float) -> Array:
    """Rotation angles [n, head_dim / 2] of positions [n, axes]: each axis turns its own share of the pairs."""
    axes = positions.shape[1]
    share = head_dim // 2 // axes
    columns = []
    for axis in range(axes):
        for j in range(share):
            columns.append(positions[:, axis] * theta ** (-j / share))
    return np.stack(columns, axis=1)


def rotate(x: Array, angle: Array) -> Array:
    """Turns the pairs (j, j + head_dim / 2) of x [n, head_dim]."""
    half = x.shape[1] // 2
    out = np.empty_like(x)
    for j in range(half):
        c, s = np.cos(angle[:, j]), np.sin(angle[:, j])
        out[:, j] = x[:, j] * c - x[:, j + half] * s
        out[:, j + half] = x[:, j + half] * c + x[:, j] * s
    return out


def llama(w: Weights, heads: int, kv_heads: int, head_dim: int, x: Array, angle: Array, eps: float = 1e-6) -> Array:
    """Textbook Llama layers on embeddings x [n, hidden]; returns features before the final norm."""
    n = len(x)
    layers = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("layers."))
    hidden_future = np.triu(np.full((n, n), -np.inf), 1)
    for layer in range(layers):
        p = f"layers.{layer}."
        qkv = rms(x, w[p + "attention_norm.weight"], eps) @ w[p + "attention.qkv.weight"].T
        parts = [qkv[:, i * head_dim : (i + 1) * head_dim] for i in range(heads + 2 * kv_heads)]
        outputs = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            query, key, value = parts[head], parts[heads + group], parts[heads + kv_heads + group]
            if p + "attention.q_norm.weight" in w:
                query = (
                    layer_norm(query) * w[p + "attention.q_norm.weight"][head] + w[p + "attention.q_norm.bias"][head]
                )
                key = layer_norm(key) * w[p + "attention.k_norm.weight"][group] + w[p + "attention.k_norm.bias"][group]
            scores = rotate(query, angle) @ rotate(key, angle).T / math.sqrt(head_dim)
            outputs.append(softmax(scores + hidden_future) @ value)
        x = x + np.concatenate(outputs, axis=1) @ w[p + "attention.out.weight"].T
        inner = rms(x, w[p + "mlp_norm.weight"], eps) @ w[p + "mlp.gate_up.weight"].T
        gate, up = np.split(inner, 2, axis=1)
        x = x + (silu(gate) * up) @ w[p + "mlp.down.weight"].T
    return x


def layer_norm(x: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def truncated(logits: Array, sampling: Sampling) -> Array:
    """Probabilities [codes] after temperature, top-k and top-p, each code judged by itself."""
    codes = len(logits)
    if sampling.temperature == 0:
        return np.eye(codes)[int(np.argmax(logits))]
    logits = logits / sampling.temperature
    keep = [True] * codes
    if sampling.top_k:
        keep = [sum(other > logits[c] for other in logits) < sampling.top_k for c in range(codes)]
    logits = np.where(keep, logits, -np.inf)
    if sampling.top_p < 1:
        p = softmax(logits)
        logits = np.where([p[p > p[c]].sum() < sampling.top_p for c in range(codes)], logits, -np.inf)
    return softmax(logits)


def inverse_cdf(weights: Array, u: float) -> int:
    total, running = float(weights.sum()), 0.0
    for code, weight in enumerate(weights):
        running += float(weight)
        if running > u * total:
            return code
    return int(np.flatnonzero(weights)[-1])
