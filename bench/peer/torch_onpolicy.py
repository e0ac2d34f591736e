"""What a user would pick instead: on-policy distillation steps in plain PyTorch + transformers, as bench/onpolicy times them.

The student writes SAMPLES texts for each prompt (generate with a static cache, which compiles the decoding step), the teacher scores
them, the student learns the reverse KL divergence over the whole vocabulary. Random weights of published shapes, all texts of one
length (no text may end before). Prints a line and a JSON object a step, of all steps so far.
usage: torch_onpolicy.py [--shape 7b:0.5b] [--prompts 64] [--samples 8] [--prompt 128] [--tokens 512] [--micro 16] [--rounds 1] [--limit 200]
"""
import argparse, json, os, sys, time, torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_kd import make

@torch.compile
def chunk_grad(s, t, n):
    """Reverse KL of rows of logits, Σ q ln(q/p), and its gradient over s, divided by n; float32 inside."""
    lq = torch.log_softmax(s.float(), -1); d = lq - torch.log_softmax(t.float(), -1)
    q = lq.exp(); kl = (q * d).sum(-1, keepdim=True)
    return (q * (d - kl) / n).to(torch.bfloat16), kl.sum() / n

class ReverseKL(torch.autograd.Function):
    """Heads and loss in chunks of rows: the logits of neither model ever exist whole."""
    @staticmethod
    def forward(ctx, hs, ws, ht, wt, n, chunk):
        v = ws.shape[0]; dh = torch.empty_like(hs); dw = torch.zeros(ws.shape, dtype=torch.float32, device=ws.device); total = hs.new_zeros((), dtype=torch.float32)
        for i in range(0, hs.shape[0], chunk):
            h = hs[i:i+chunk]; g, l = chunk_grad(h @ ws.t(), ht[i:i+chunk] @ wt[:v].t(), n); total += l
            dh[i:i+chunk] = g @ ws; dw += g.t() @ h
        ctx.save_for_backward(dh, dw.to(ws.dtype)); return total
    @staticmethod
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors; return dh * g, dw * g, None, None, None, None

def seconds(f):
    torch.cuda.synchronize(); begun = time.time(); r = f(); torch.cuda.synchronize(); return time.time() - begun, r

def sample(student, prompts, a):
    """Texts of all prompts, at most a.batch at a time."""
    more = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=a.tokens, min_new_tokens=a.tokens, eos_token_id=a.eos, pad_token_id=a.eos)
    out = []
    for i in range(0, prompts.shape[0], a.batch):
        p = prompts[i:i+a.batch]
        out.append(student.generate(input_ids=p, attention_mask=torch.ones_like(p), cache_implementation=a.cache, **more))
    return torch.cat(out)

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shape", default="7b:0.5b"); p.add_argument("--prompts", type=int, default=64); p.add_argument("--samples", type=int, default=8)
    p.add_argument("--prompt", type=int, default=128); p.add_argument("--tokens", type=int, default=512); p.add_argument("--micro", type=int, default=16)
    p.add_argument("--rounds", type=int, default=1); p.add_argument("--chunk", type=int, default=2048); p.add_argument("--limit", type=float, default=200)
    a = p.parse_args(); begun = time.time(); left = lambda: a.limit - (time.time() - begun)
    tn, sn = a.shape.split(":"); a.eos, a.batch, a.cache = 151645, a.prompts * a.samples, "static"
    teacher = make(tn, torch.bfloat16).eval().requires_grad_(False); student = make(sn, torch.bfloat16)
    tb, sb = torch.compile(teacher.model), torch.compile(student.model)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-6, fused=True)
    done = dict(torch=torch.__version__, device=torch.cuda.get_device_name(), shape=a.shape, texts=a.batch, prompt_tokens=a.prompt, tokens=a.tokens, rounds=[])
    drawn = a.prompts * a.samples * a.tokens

    def train(ids):
        n = ids.shape[0] * a.tokens; total = 0.
        for i in range(0, ids.shape[0], a.micro):
            x = ids[i:i+a.micro, :-1]
            with torch.no_grad(): ht = tb(input_ids=x, use_cache=False).last_hidden_state[:, a.prompt-1:]
            hs = sb(input_ids=x, use_cache=False).last_hidden_state[:, a.prompt-1:]
            loss = ReverseKL.apply(hs.reshape(-1, hs.shape[-1]), student.lm_head.weight, ht.reshape(-1, ht.shape[-1]), teacher.lm_head.weight, n, a.chunk)
            loss.backward(); total += loss.detach()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0); opt.step(); opt.zero_grad(set_to_none=True); return total.item()

    took = 0.
    for step in range(a.rounds + 1):
        if step > 1 and left() < took * 1.2: break
        g = torch.Generator(device="cuda"); g.manual_seed(step)
        prompts = torch.randint(0, 151000, (a.prompts, a.prompt), device="cuda", generator=g).repeat_interleave(a.samples, 0)
        student.eval()
        while True:
            try:
                with torch.no_grad(): sampling, ids = seconds(lambda: sample(student, prompts, a))
                break
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache(); a.batch //= 2; print(f"out of memory: {a.batch} texts at a time", flush=True)
                if a.batch == 0: raise
            except Exception as e:  # a static cache that this version cannot compile
                if a.cache is None: raise
                print(f"static cache: {type(e).__name__} {str(e)[:300]}: the default cache instead", flush=True); a.cache = None
        assert ids.shape[1] == a.prompt + a.tokens, ids.shape
        student.train(); training, loss = seconds(lambda: train(ids)); took = sampling + training
        print(f"step {step}: sampling {sampling:.2f} s ({drawn/sampling:.0f} tokens/s), scoring and training {training:.2f} s, {drawn/took:.0f} tokens/s in all, loss {loss:.4f}", flush=True)
        row = dict(sampling=sampling, training=training, loss=loss)
        if step == 0: done["first"] = row
        else: done["rounds"].append(row)
        report(done, drawn, a)

def report(done, drawn, a):
    rounds = done["rounds"] or [done["first"]]  # the first step also compiles
    done.update(cache=a.cache or "default", batch=a.batch, peak_gib=torch.cuda.max_memory_allocated() / 2**30,
                sampled_tokens_per_second=max(drawn / r["sampling"] for r in rounds), tokens_per_second=max(drawn / (r["sampling"] + r["training"]) for r in rounds))
    print(json.dumps(done), flush=True)

if __name__ == "__main__": main()
