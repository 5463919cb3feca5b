#!/usr/bin/env python3
"""Octavo's models in Hugging Face's transformers, and models of transformers for Octavo.

    scripts/check_transformers.py make DIR      # small random GPT-2s, saved by transformers in every variant
    scripts/check_transformers.py check DIR...  # opens each folder and compares logits

`make` writes DIR/<variant>/ for: transformers' float32, float16, bfloat16, untied, without the "transformer." prefix, in
shards. `check` expects beside the model a file logits.safetensors that another program made: tokens [T] int32 and
logits [T, vocab] float32, without dropout. It opens the model with GPT2LMHeadModel.from_pretrained, demands that no
tensor is missing or left over, and that the logits are as near to those of double precision as transformers' own in
float32 are, times 4: both programs round differently, so equal bits are not to be expected. Where the folder has a
tokenizer.json, AutoTokenizer must open it and give a text back.

Exit status: 0 equal, 1 not, 77 torch or transformers is not installed (with a line "SKIPPED: ...").
"""
import argparse
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # a folder that is missing is an error here, not a download
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"SKIPPED: transformers tests: {error}; pip install -r scripts/requirements-test.txt")
    sys.exit(77)

SAMPLE = "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Añoró?\n"


def random_model(**changes):
    """A GPT-2 whose every parameter matters: wide weights, no bias at zero, no gain at one."""
    config = transformers.GPT2Config(vocab_size=101, n_positions=37, n_embd=48, n_layer=2, n_head=3, bos_token_id=100,
                                     eos_token_id=100, **changes)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = ".ln_" in name and name.endswith("weight")
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + (1 if gain else 0))
    return model


def make(folder):
    torch.manual_seed(1)
    random_model().save_pretrained(folder / "float32")
    random_model().to(torch.float16).save_pretrained(folder / "float16")
    random_model().to(torch.bfloat16).save_pretrained(folder / "bfloat16")
    random_model(tie_word_embeddings=False).save_pretrained(folder / "untied")
    random_model().transformer.save_pretrained(folder / "unprefixed")
    random_model().save_pretrained(folder / "shards", max_shard_size="100KB")


def logits(folder, tokens, dtype):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    faults = {kind: names for kind, names in info.items() if names}
    if faults:
        raise ValueError(f"transformers reports {faults}")
    shared = model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    if shared != model.config.tie_word_embeddings:
        raise ValueError(f"tie_word_embeddings is {model.config.tie_word_embeddings}, but the weights say {shared}")
    with torch.no_grad():
        return model.to(dtype).eval()(tokens.long()[None]).logits[0].double()


def check(folder):
    given = load_file(folder / "logits.safetensors")
    exact = logits(folder, given["tokens"], torch.float64)
    if given["logits"].shape != exact.shape:
        raise ValueError(f"logits are {list(given['logits'].shape)}, transformers' {list(exact.shape)}")
    theirs = (logits(folder, given["tokens"], torch.float32) - exact).abs().max().item()
    ours = (given["logits"].double() - exact).abs().max().item()
    scale = exact.abs().max().item()
    allowed = max(4 * theirs, 8 * scale * torch.finfo(torch.float32).eps)
    if not ours <= allowed:
        raise ValueError(f"logits differ by {ours:.3g}, allowed {allowed:.3g} (largest logit {scale:.3g})")
    if (folder / "tokenizer.json").exists():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        back = tokenizer.decode(tokenizer.encode(SAMPLE))
        if back != SAMPLE:
            raise ValueError(f"the tokenizer gives {back!r} for {SAMPLE!r}")
    return f"logits differ by {ours:.3g}, transformers' own float32 by {theirs:.3g} (largest logit {scale:.3g})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "check"))
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="DIR")
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    status = 0
    for folder in arguments.folders:
        if arguments.action == "make":
            make(folder)
            continue
        try:
            print(f"{folder.name}: {check(folder)}")
        except (ValueError, OSError, KeyError, RuntimeError) as error:
            print(f"{folder.name}: FAILED: {error}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
