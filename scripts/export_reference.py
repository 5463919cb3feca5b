#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: what PyTorch says a GPT-2 does, for the tests to hold Octavo against.

Plain PyTorch on the CPU, in float64 from float32 weights, so that the tolerance of a comparison is Octavo's alone.
Deterministic: the same PyTorch writes the same bytes. Run it again only where the files' content has to change:

    python3 scripts/export_reference.py

Each file is a safetensors file.
  metadata     version, the shape (layers, channels, heads, context, vocab, tied, norm_eps), B, T, the optimizer's
               constants, and the largest relative error of the same computation in PyTorch's own float32
  weight.NAME  f32, Hugging Face's GPT-2 names and layout: linear layers (Conv1D) are stored (in, out)
  tokens, targets   i32 [batches, B, T]; step i trains on batch i mod batches; target -1: not counted in the loss
  lr           f32 [steps], learning rate of each step
  loss         f64 [steps], mean loss over the counted targets, before the step's update
  grad_norm    f64 [steps], global L2 norm before clipping
  grad.NAME    f32, gradient of loss[0]
  logit_rows   i32 [R], rows of the B*T of batch 0;   logits  f32 [R, vocab], their logits at the first weights
  final.NAME   f32, the weights after the last step (in the smallest file only)
A step is: mean loss, backward, clipping to the global norm, AdamW with decay on matrices and embeddings.
"""
import argparse
import json
import math
import os
import struct

import torch
from torch.nn import functional as F

STEPS, BATCHES = 10, 2
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
CASES = {  # `ignored`: share of the targets that are -1
    "even": dict(layers=2, channels=32, heads=4, context=32, vocab=97, tied=True, B=2, T=32, ignored=0.0, seed=1),
    "odd": dict(layers=2, channels=48, heads=3, context=40, vocab=101, tied=True, B=3, T=37, ignored=0.2, seed=2),
    "untied": dict(layers=1, channels=32, heads=1, context=16, vocab=64, tied=False, B=2, T=16, ignored=0.1, seed=3),
}
NORM_EPS = 1e-5


def initial_weights(c):
    """GPT-2's initialisation with a wider spread, and with gains and biases that are not 1 and 0: nothing may hide."""
    generator = torch.Generator().manual_seed(c["seed"])

    def normal(*shape, mean=0.0, std=0.08):
        return mean + std * torch.randn(*shape, generator=generator)

    C, residual = c["channels"], 0.08 / math.sqrt(2 * c["layers"])
    w = {"wte.weight": normal(c["vocab"], C), "wpe.weight": normal(c["context"], C)}
    for i in range(c["layers"]):
        h = f"h.{i}."
        for norm in ("ln_1", "ln_2"):
            w[h + norm + ".weight"] = normal(C, mean=1.0, std=0.1)
            w[h + norm + ".bias"] = normal(C, std=0.1)
        for name, size, std in (("attn.c_attn", (C, 3 * C), 0.16), ("attn.c_proj", (C, C), residual),
                                ("mlp.c_fc", (C, 4 * C), 0.08), ("mlp.c_proj", (4 * C, C), residual)):
            w[h + name + ".weight"] = normal(*size, std=std)
            w[h + name + ".bias"] = normal(size[1], std=0.1)
    w["ln_f.weight"], w["ln_f.bias"] = normal(C, mean=1.0, std=0.1), normal(C, std=0.1)
    if not c["tied"]:
        w["lm_head.weight"] = normal(c["vocab"], C)
    return w


def batches(c):
    """Text with a rule (the next token is an affine function of this one, plus a little noise), so that the loss falls
    within ten steps: a wrong update then shows in the losses."""
    generator = torch.Generator().manual_seed(100 + c["seed"])
    shape = (BATCHES, c["B"])
    text = torch.empty(*shape, c["T"] + 1, dtype=torch.int64)
    text[..., 0] = torch.randint(0, c["vocab"], shape, generator=generator)
    for t in range(c["T"]):
        text[..., t + 1] = (5 * text[..., t] + 7 + torch.randint(0, 3, shape, generator=generator)) % c["vocab"]
    tokens, targets = text[..., :-1].contiguous(), text[..., 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < c["ignored"]] = -1
    return tokens, targets


def logits_of(w, c, tokens):
    """The network: pre-layer-norm blocks, learned positions, fused QKV, GELU in its tanh form."""
    C, H = c["channels"], c["heads"]
    B, T = tokens.shape

    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], NORM_EPS)

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    future = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    for i in range(c["layers"]):
        h = f"h.{i}."
        q, k, v = (z.view(B, T, H, C // H).transpose(1, 2)
                   for z in linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(C, dim=2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(C // H)
        y = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v
        x = x + linear(y.transpose(1, 2).reshape(B, T, C), h + "attn.c_proj")
        hidden = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, h + "mlp.c_proj")
    head = w["wte.weight"] if c["tied"] else w["lm_head.weight"]
    return norm(x, "ln_f") @ head.T


def train(c, initial, tokens, targets, lrs, dtype):
    """Ten steps. Returns losses, gradient norms, the first step's logits and gradients, the last weights."""
    w = {name: value.to(dtype).clone().requires_grad_() for name, value in initial.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in w.values() if p.dim() == 2], "weight_decay": DECAY},
         {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0}], betas=BETAS, eps=EPS)
    losses, norms, first_logits, first_grads = [], [], None, None
    for i in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = float(lrs[i])
        logits = logits_of(w, c, tokens[i % BATCHES])
        loss = F.cross_entropy(logits.reshape(-1, c["vocab"]), targets[i % BATCHES].reshape(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        if i == 0:
            first_logits = logits.detach().reshape(-1, c["vocab"])
            first_grads = {name: p.grad.clone() for name, p in w.items()}
        norm = torch.linalg.vector_norm(torch.cat([p.grad.reshape(-1) for p in w.values()]))
        losses.append(loss.item())
        norms.append(norm.item())
        # Octavo's clip factor is min(1, clip / norm); PyTorch's clip_grad_norm_ adds 1e-6 to the norm.
        factor = min(1.0, CLIP / norm.item())
        for p in w.values():
            p.grad.mul_(factor)
        optimizer.step()
    return losses, norms, first_logits, first_grads, {name: p.detach() for name, p in w.items()}


def relative_error(values, exact):
    return max((torch.linalg.vector_norm(values[n].double() - exact[n]) / torch.linalg.vector_norm(exact[n])).item()
               for n in exact)


def save(path, tensors, metadata):
    """A safetensors file with a fixed order of everything, so that the same values are the same bytes."""
    kinds = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32"}
    header, data = {"__metadata__": metadata}, bytearray()
    for name, t in tensors.items():
        raw = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": kinds[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def export(name, c, folder):
    initial = initial_weights(c)
    tokens, targets = batches(c)
    lrs = torch.tensor([4e-3 * min(1.0, (i + 1) / 4) for i in range(STEPS)], dtype=torch.float32)
    losses, norms, logits, grads, final = train(c, initial, tokens, targets, lrs, torch.float64)
    losses32, _, _, grads32, _ = train(c, initial, tokens, targets, lrs, torch.float32)
    rows = torch.tensor([0, 1, c["T"] - 1, c["T"], c["B"] * c["T"] - 1])

    tensors = {"weight." + n: v for n, v in initial.items()}
    tensors |= {"grad." + n: v.float() for n, v in grads.items()}
    tensors |= {"tokens": tokens.int(), "targets": targets.int(), "lr": lrs,
                "loss": torch.tensor(losses, dtype=torch.float64),
                "grad_norm": torch.tensor(norms, dtype=torch.float64),
                "logit_rows": rows.int(), "logits": logits[rows].float()}
    if name == "untied":
        tensors |= {"final." + n: v.float() for n, v in final.items()}
    metadata = {k: str(c[k]) for k in ("layers", "channels", "heads", "context", "vocab", "B", "T")}
    metadata |= {"format_version": "1", "tied": "true" if c["tied"] else "false", "norm_eps": repr(NORM_EPS),
                 "beta1": repr(BETAS[0]), "beta2": repr(BETAS[1]), "eps": repr(EPS), "weight_decay": repr(DECAY),
                 "clip": repr(CLIP), "steps": str(STEPS), "batches": str(BATCHES), "torch": torch.__version__,
                 "torch_float32_loss_error": f"{max(abs(a / b - 1) for a, b in zip(losses32, losses)):.3g}",
                 "torch_float32_gradient_error": f"{relative_error(grads32, grads):.3g}"}
    path = os.path.join(folder, name + ".safetensors")
    save(path, tensors, metadata)
    print(f"{path}: {os.path.getsize(path)} bytes, loss {losses[0]:.6f} to {losses[-1]:.6f}, "
          f"gradient norm {norms[0]:.4f}, float32 error of the loss {metadata['torch_float32_loss_error']}, "
          f"of a gradient {metadata['torch_float32_gradient_error']}")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=os.path.join(here, "..", "tests", "golden"), help="folder to write to")
    a = p.parse_args()
    torch.set_num_threads(1)  # one order of summation
    os.makedirs(a.out, exist_ok=True)
    for name, c in CASES.items():
        export(name, c, a.out)


if __name__ == "__main__":
    main()
