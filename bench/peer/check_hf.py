"""Loads a Hugging Face folder that apr wrote with transformers and scores it as `apr eval` does: nats per token over windows
of 512 targets, documents joined by end-of-text. usage: check_hf.py FOLDER VAL.jsonl IDS"""
import json, math, sys, torch
from transformers import AutoTokenizer, Qwen2ForCausalLM
folder, val, vocab = sys.argv[1], sys.argv[2], int(sys.argv[3])
tok = AutoTokenizer.from_pretrained(folder); m = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
eos = tok.convert_tokens_to_ids("<|endoftext|>"); ids = []
for line in open(val):
    ids += tok.encode(json.loads(line)["text"], split_special_tokens=True, add_special_tokens=False) + [eos]
S = 512; n = (len(ids) - S - 1) // S + 1; total = 0.0
with torch.no_grad():
    for j in range(n):
        w = torch.tensor(ids[j * S : j * S + S + 1])
        z = m(input_ids=w[None, :-1], use_cache=False).logits[0, :, :vocab]
        total += torch.nn.functional.cross_entropy(z, w[1:], reduction="sum").item()
print("RESULT transformers %d tokens, %d targets, %.7f nats/token, tied %s, dtype %s" % (len(ids), n * S, total / (n * S), m.config.tie_word_embeddings, m.config.dtype))
g = m.generate(torch.tensor([tok.encode("func ")]), max_new_tokens=24, do_sample=False)[0].tolist()
print("RESULT greedy", json.dumps(tok.decode(g)))
