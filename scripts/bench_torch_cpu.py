#!/usr/bin/env python3
"""Training speed and memory on the CPU: octavo train beside PyTorch, eager and compiled, FP32 and BF16.

Both sides train the same GPT-2 (about 10 M parameters by default: C=384, L=6, H=6, T=256, byte vocabulary 257)
on the same batch shape with the same number of threads: forward, loss, backward, clipping by the global norm,
AdamW. Every contender is a process of its own; they take turns, round after round, so that whatever else the
machine does falls on all of them. A ratio is the median over the rounds of (Octavo's tokens/s) / (tokens/s of the
better of eager and compiled in that round).

PyTorch is made as fast as is fair: scaled_dot_product_attention, fused AdamW, foreach clipping, gradients set to
None, the best of both vocabulary widths (257, or padded to 320 as Octavo pads it), the autocast cache for weights,
Inductor with its C++ kernels.

Peak memory is the kernel's high-water mark of the process. PyTorch's counts from the end of the warm-up, so that what
its imports and its compiler took and gave back is not held against it.

The table's last column is the share of the matrix products of the linear layers and the head in PyTorch's step,
by its profiler, and 1/share: what a program gains that calls equally fast products and does all else in no time.

    scripts/bench_torch_cpu.py                            # build/cpu/octavo against torch
    scripts/bench_torch_cpu.py --octavo '' --rounds 2     # torch alone
"""
import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

ENGINES = ("eager", "compiled")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_linear", "mkl::_mkl_linear",
            "mkldnn::_linear_pointwise", "aten::mkldnn_linear_backward")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--octavo", default="build/cpu/octavo", help="the program; empty: PyTorch alone")
    p.add_argument("--modes", default="fp32,bf16")
    p.add_argument("--engines", default=",".join(ENGINES))
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--channels", type=int, default=384)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--sequence", type=int, default=256)
    p.add_argument("--vocab", type=int, default=257)
    p.add_argument("--micro-batch", type=int, default=16)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=6, help="measured steps a round and contender")
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--json", metavar="FILE", help="also write every figure there")
    p.add_argument("--worker", help=argparse.SUPPRESS)  # "engine,mode,vocab_width,optimizer": a child of this script
    return p.parse_args()


# ---- the PyTorch side: one process per contender, driven over its standard input ---------------------------------


def make_model(a, width):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            c = a.channels
            self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
            self.c_attn, self.attn_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
            self.c_fc, self.mlp_proj = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
            q, k, v = (z.view(b, t, a.heads, c // a.heads).transpose(1, 2) for z in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(width, a.channels)
            self.wpe = nn.Embedding(a.sequence, a.channels)
            self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
            self.ln_f = nn.LayerNorm(a.channels)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    std = 0.02 / math.sqrt(2 * a.layers) if name.endswith("_proj.weight") else 0.02
                    nn.init.normal_(p, std=std)
                elif name.endswith("bias"):
                    nn.init.zeros_(p)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, width), targets.view(-1))

    torch.manual_seed(1)
    return Gpt()


def status_mib(field):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def reset_peak():
    """Forgets the peak so far (proc(5), clear_refs), so that the compiler's own memory does not count as the run's."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError as error:  # some containers forbid it: then the whole process's peak is reported
        print(f"bench_torch_cpu.py: the peak so far stays counted: {error}", file=sys.stderr)


def worker(a):
    engine, mode, width, optimizer_kind = a.worker.split(",")
    import torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(2)
    model = make_model(a, int(width))
    decays = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), eps=1e-8, **{optimizer_kind: True})
    call = torch.compile(model) if engine == "compiled" else model
    stream = torch.randint(0, a.vocab, (64, a.micro_batch, a.sequence + 1))

    def step(i):
        batch = stream[i % len(stream)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "bf16"):
            loss = call(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    done = 0
    for _ in range(a.warmup):
        step(done)
        done += 1
    whole_peak = status_mib("VmHWM")
    reset_peak()
    print(json.dumps({"ready": True, "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    for line in sys.stdin:
        reply = {}
        if line.startswith("steps"):
            step(done)  # caches are cold after the others' turn
            times = []
            for _ in range(int(line.split()[1])):
                begin = time.perf_counter()
                loss = step(done)
                times.append(time.perf_counter() - begin)
                done += 1
            reply = {"times": times, "loss": loss, "peak_mib": status_mib("VmHWM"), "whole_peak_mib": whole_peak}
        elif line.startswith("profile"):
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CPU]) as prof:
                for _ in range(2):
                    step(done)
            rows = prof.key_averages()
            total = sum(r.self_cpu_time_total for r in rows)
            products = sum(r.self_cpu_time_total for r in rows if r.key in PRODUCTS)
            attention = sum(r.self_cpu_time_total for r in rows if "scaled_dot_product" in r.key)
            top = sorted(rows, key=lambda r: -r.self_cpu_time_total)[:12]
            reply = {"share": products / total, "attention_share": attention / total,
                     "top": [[r.key, r.self_cpu_time_total / total] for r in top]}
        print(json.dumps(reply), flush=True)


class Worker:
    """A PyTorch contender in its own process."""

    def __init__(self, a, engine, mode, width, optimizer):
        self.engine, self.mode, self.width, self.optimizer = engine, mode, width, optimizer
        command = [sys.executable, os.path.abspath(__file__), "--worker", f"{engine},{mode},{width},{optimizer}"]
        for name in ("threads", "layers", "channels", "heads", "sequence", "vocab", "micro_batch", "warmup"):
            command += ["--" + name.replace("_", "-"), str(getattr(a, name))]
        env = dict(os.environ, OMP_NUM_THREADS=str(a.threads))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.parameters = self.reply()["parameters"]

    def reply(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench_torch_cpu.py: the PyTorch process ({self.engine}, {self.mode}) ended early")
        return json.loads(line)

    def ask(self, request):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self.reply()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def best_worker(a, engine, mode):
    """The fastest of the ways to say the same thing in PyTorch; the losers are ended before anything is measured."""
    padded = (a.vocab + 63) // 64 * 64
    workers, fastest = [], {}
    for width, optimizer in ((padded, "fused"), (a.vocab, "fused"), (padded, "foreach")):
        try:
            workers.append(Worker(a, engine, mode, width, optimizer))
        except SystemExit as error:  # a PyTorch without fused AdamW on the CPU
            print(error, file=sys.stderr)
    if not workers:
        raise SystemExit(f"bench_torch_cpu.py: PyTorch {engine} {mode} does not run here")
    for _ in range(3):
        for w in workers:
            fastest[w] = min(fastest.get(w, math.inf), *w.ask("steps 2")["times"])
    for w in workers:
        print(f"  {mode} {engine}, vocabulary {w.width}, {w.optimizer} AdamW: {fastest[w] * 1e3:.0f} ms", file=sys.stderr)
    best = min(workers, key=fastest.get)
    for w in workers:
        if w is not best:
            w.close()
    return best


# ---- Octavo's side -----------------------------------------------------------------------------------------------


def run_octavo(a, mode, folder, index):
    """One `octavo train` of warm-up + measured steps; its own metrics give the times, the kernel its peak memory."""
    data = os.path.join(folder, "bytes.txt")
    if not os.path.exists(data):
        generator = random.Random(1)
        with open(data, "wb") as f:
            f.write(generator.randbytes(a.micro_batch * (a.sequence + 1) * 64))
    run = os.path.join(folder, f"{mode}{index}")
    config = {
        "name": f"bench-{mode}", "device": "cpu", "threads": a.threads,
        "model": {"layers": a.layers, "channels": a.channels, "heads": a.heads, "context": a.sequence},
        "precision": {"mode": mode},
        "data": {"train": data, "tokenizer": "bytes", "format": "text"},
        "train": {"steps": a.warmup + a.steps, "micro_batch": a.micro_batch,
                  "tokens_per_step": a.micro_batch * a.sequence, "eval_every": 0, "checkpoint_every": 0},
        "optimizer": {"lr": 6e-4, "schedule": "constant"},
        "output": {"dir": run},
    }
    path = os.path.join(folder, f"{mode}.json")
    with open(path, "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "octavo.log"), "w+b") as log:
        process = subprocess.Popen([a.octavo, "train", path], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            log.seek(0)
            raise SystemExit(f"bench_torch_cpu.py: {a.octavo} train failed:\n" + log.read().decode(errors="replace"))
    with open(os.path.join(run, "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    times = [r["step_ms"] / 1e3 for r in rows if r.get("step_ms") and r["step"] > a.warmup]
    return {"times": times, "loss": rows[-1]["loss"], "peak_mib": usage.ru_maxrss / 1024}


# ---- the comparison ----------------------------------------------------------------------------------------------


def compare(a, mode, folder):
    engines = a.engines.split(",")
    workers = {e: best_worker(a, e, mode) for e in engines}
    rounds = []
    for i in range(a.rounds):
        row = {}
        if a.octavo:
            row["octavo"] = run_octavo(a, mode, folder, i)
        for e, w in workers.items():
            row[e] = w.ask(f"steps {a.steps}")
        rounds.append(row)
        print(f"  {mode} round {i + 1} of {a.rounds}: " +
              ", ".join(f"{k} {statistics.median(v['times']) * 1e3:.0f} ms" for k, v in row.items()), file=sys.stderr)
    profiles = {e: w.ask("profile") for e, w in workers.items()}
    chosen = {e: {"vocabulary": w.width, "optimizer": w.optimizer, "parameters": w.parameters}
              for e, w in workers.items()}
    for w in workers.values():
        w.close()

    tokens = a.micro_batch * a.sequence
    result = {"mode": mode, "rounds": rounds, "profiles": profiles, "chosen": chosen, "contenders": {}}
    for name in rounds[0]:
        times = [t for r in rounds for t in r[name]["times"]]
        result["contenders"][name] = {"tokens_per_s": tokens / statistics.median(times),
                                      "best_tokens_per_s": tokens / min(times),
                                      "peak_mib": max(r[name]["peak_mib"] for r in rounds)}
    better = max(engines, key=lambda e: result["contenders"][e]["tokens_per_s"])
    result["better"] = better
    result["bound"] = 1 / profiles[better]["share"]
    if a.octavo:
        median = {n: [statistics.median(r[n]["times"]) for r in rounds] for n in rounds[0]}
        result["ratio"] = statistics.median(min(median[e][i] for e in engines) / median["octavo"][i]
                                            for i in range(a.rounds))
    return result


def print_table(a, results):
    import torch

    print(f"L={a.layers} C={a.channels} H={a.heads} T={a.sequence} vocabulary {a.vocab}, micro-batch {a.micro_batch}, "
          f"{a.threads} threads, torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}); "
          f"{a.rounds} rounds of {a.steps} steps in turns, medians\n")
    print("| mode | program | tokens/s | best step | peak MiB | octavo / better torch | products' share of the step, bound |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for r in results:
        for name, c in r["contenders"].items():
            ratio = f"{r['ratio']:.2f}" if name == "octavo" else ""
            share = ""
            if name in r["profiles"]:
                s = r["profiles"][name]["share"]
                share = f"{100 * s:.0f} %, {1 / s:.2f}"
            label = name if name == "octavo" else f"torch {name}"
            print(f"| {r['mode']} | {label} | {c['tokens_per_s']:.0f} | {c['best_tokens_per_s']:.0f} | "
                  f"{c['peak_mib']:.0f} | {ratio} | {share} |")


def main():
    a = arguments()
    if a.worker:
        worker(a)
        return
    if a.octavo and not os.access(a.octavo, os.X_OK):
        raise SystemExit(f"bench_torch_cpu.py: --octavo: found \"{a.octavo}\", which is no program; allowed: the built "
                         "octavo, or '' for PyTorch alone")
    with tempfile.TemporaryDirectory(prefix="octavo_bench_") as folder:
        results = [compare(a, mode, folder) for mode in a.modes.split(",")]
    print_table(a, results)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"arguments": vars(a), "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
