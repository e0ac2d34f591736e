//apr:kernel w:rw g:r m:rw v:rw | n:u32 decay:f32 beta1:f32 rest1:f32 beta2:f32 rest2:f32 scale:f32 step:f32 bias:f32 eps:f32

// m = β₁m+(1−β₁)sg, v = β₂v+(1−β₂)(sg)², w = w·decay − step·m/(√v·bias + eps), as device.AdamW has it.
fn run(group: u32, lane: u32) {
  for (var i = group * 1024u + lane; i < min(group * 1024u + 1024u, args.n); i += 64u) {
    let s = g[args.g_at + i] * args.scale;
    let a = args.beta1 * m[args.m_at + i] + args.rest1 * s;
    let b = args.beta2 * v[args.v_at + i] + args.rest2 * s * s;
    m[args.m_at + i] = a;
    v[args.v_at + i] = b;
    w[args.w_at + i] = w[args.w_at + i] * args.decay - args.step * a / (sqrt(b) * args.bias + args.eps);
  }
}
