"""Loads a Hugging Face folder that apr wrote with transformers and prints one JSON object.

usage: check_hf.py FOLDER VAL.jsonl IDS      nats per token as `apr eval` scores them: windows of 512 targets, documents
                                             joined by end-of-text, over the first IDS logits; and a greedy text
       check_hf.py FOLDER LOGITS.json        the largest difference to logits that apr wrote
                                             (go run ./bench/interop -logits LOGITS.json FOLDER PROMPT)
Exits 1 when the ids of the prompt differ or a logit is off by more than 1e-3 of the largest.
"""
import json, math, sys, torch
from transformers import AutoTokenizer, Qwen2ForCausalLM
folder = sys.argv[1]
tok = AutoTokenizer.from_pretrained(folder); m = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
out = {"folder": folder, "tied": m.config.tie_word_embeddings, "dtype": str(json.load(open(folder + "/config.json"))["dtype"]),
       "rope_theta": getattr(m.config, "rope_theta", None) or m.config.rope_parameters["rope_theta"], "chat_template": bool(tok.chat_template)}
if len(sys.argv) == 3:
    want = json.load(open(sys.argv[2])); w = torch.tensor(want["logits"], dtype=torch.float64)
    with torch.no_grad():
        z = m(input_ids=torch.tensor([want["ids"]]), use_cache=False).logits[0]
    out["ids_equal"] = tok.encode(want["prompt"], add_special_tokens=False) == want["ids"]
    out["max_abs"], out["largest_logit"] = (z - w).abs().max().item(), w.abs().max().item()
    out["argmax_equal"] = bool((z.argmax(-1) == w.argmax(-1)).all()); out["positions"], out["vocab"] = list(w.shape)
    print("RESULT", json.dumps(out)); sys.exit(not (out["ids_equal"] and out["max_abs"] <= 1e-3 * out["largest_logit"]))
val, vocab = sys.argv[2], int(sys.argv[3])
eos = tok.convert_tokens_to_ids("<|endoftext|>"); ids = []
for line in open(val):
    ids += tok.encode(json.loads(line)["text"], split_special_tokens=True, add_special_tokens=False) + [eos]
S = 512; n = (len(ids) - S - 1) // S + 1; total = 0.0
with torch.no_grad():
    for j in range(n):
        w = torch.tensor(ids[j * S : j * S + S + 1])
        z = m(input_ids=w[None, :-1], use_cache=False).logits[0, :, :vocab]
        total += torch.nn.functional.cross_entropy(z, w[1:], reduction="sum").item()
g = m.generate(torch.tensor([tok.encode("func ")]), max_new_tokens=24, do_sample=False)[0].tolist()
print("RESULT", json.dumps(out | {"tokens": len(ids), "targets": n * S, "nats_per_token": total / (n * S), "greedy": tok.decode(g)}))
