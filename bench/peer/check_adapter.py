"""Compares greedy texts of apr with those of transformers, and of PEFT where python3 has it: of an adapter beside its base,
of the merged model, and of a student that was trained in blocks.

usage: check_adapter.py APR BASE ADAPTER MERGED [BLOCKS.gguf BLOCKS]
  BASE, MERGED   folders of Hugging Face; MERGED is BASE with the adapter, as `apr export --quantize f32` wrote it
  ADAPTER        a folder of PEFT
  BLOCKS         a folder with the values that the blocks of BLOCKS.gguf decode to, in float32
Each comparison is a line: what, "same" or "other", the largest difference of two logits where both are at hand, and the
texts that differ. All compute in float32. Without peft the adapter is added by PEFT's formula, and a line says so.
Exits 1 if a text differs.
"""
import json, os, subprocess, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["func ", "package main\n\nimport ", "// Reset ", "if err != nil {\n\treturn "]
TOKENS = 24
apr, base, adapter, merged = sys.argv[1:5]
failed = False


def by_apr(*source):
    """Texts that apr writes, in float32 on a CPU."""
    return [subprocess.run([apr, "run", *source, "-p", p, "-n", str(TOKENS), "--temperature", "0", "--exact", "--backend", "cpu", "--quiet"],
                           check=True, capture_output=True, text=True).stdout.rstrip("\n") for p in PROMPTS]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def by_torch(model, tok):
    """Texts that transformers writes, each with the logits of its prompt."""
    texts, logits = [], []
    with torch.no_grad():
        for p in PROMPTS:
            ids = torch.tensor([tok.encode(p, add_special_tokens=False)])
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                                 pad_token_id=0)[0, ids.shape[1]:]
            texts.append(tok.decode(out, skip_special_tokens=True).rstrip("\n"))
            logits.append(model(input_ids=ids, use_cache=False).logits[0])
    return texts, logits


def compare(what, a, b, logits=None):
    """A line: texts a are apr's, logits pairs of lists."""
    global failed
    other = [{"prompt": p, "apr": x, "peer": y} for p, x, y in zip(PROMPTS, a, b) if x != y]
    failed = failed or bool(other)
    line = {"what": what, "texts": len(a), "greedy": "other" if other else "same"}
    if logits:
        line["max_logit_difference"] = max((x - y).abs().max().item() for x, y in zip(*logits))
        line["largest_logit"] = max(x.abs().max().item() for x in logits[0])
    print("RESULT", json.dumps(line | ({"differ": other} if other else {})), flush=True)


def adapted(model):
    """The model with its adapter beside its matrices, and who put it there."""
    try:
        from peft import PeftModel, __version__
        return PeftModel.from_pretrained(model, adapter).eval(), "PEFT " + __version__
    except ImportError:
        print("peft is not installed: its file is added by its formula, W + alpha/r * B A", flush=True)
    from safetensors.torch import load_file
    config = json.load(open(os.path.join(adapter, "adapter_config.json")))
    values = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    modules, count = dict(model.named_modules()), 0
    with torch.no_grad():
        for name, a in values.items():
            if not name.endswith(".lora_A.weight"):
                continue
            b = values[name.replace(".lora_A.", ".lora_B.")]
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            modules[path].weight += config["lora_alpha"] / config["r"] * (b.float() @ a.float())
            count += 1
    return model, f"PEFT's formula, {count} matrices"


tok = AutoTokenizer.from_pretrained(base)
plain = by_apr(base)
texts, _ = by_torch(load(base), tok)
compare("base", plain, texts)
want = by_apr(merged)
texts, logits = by_torch(load(merged), tok)
compare("merged model, by transformers", want, texts)
model, who = adapted(load(base))
texts, beside = by_torch(model, tok)
compare("adapter beside its base, by " + who, want, texts, (logits, beside))
if want == plain:
    failed = True
    print("the adapter changes no text, so nothing was compared", flush=True)
if len(sys.argv) > 6:
    texts, _ = by_torch(load(sys.argv[6]), tok)
    compare("student in blocks, by transformers", by_apr(sys.argv[5]), texts)
    try:
        import gguf
    except ImportError:
        print("gguf is not installed: transformers cannot read the file itself", flush=True)
    else:
        model = AutoModelForCausalLM.from_pretrained(os.path.dirname(os.path.abspath(sys.argv[5])), gguf_file=os.path.basename(sys.argv[5]),
                                                     dtype=torch.float32).eval()
        texts, _ = by_torch(model, tok)
        compare("student in blocks, its GGUF by transformers", by_apr(sys.argv[5]), texts)
sys.exit(failed)
