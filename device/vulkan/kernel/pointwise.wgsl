//apr:kernel y:rw x:r | cols:u32 kind:u32 f:f32
//apr:include exp

// y = y + x (kind 0), f·x (1), or f·tanh(x/f) (2). y may be x.
fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let r = group / chunks;
  let c0 = group % chunks * 512u;
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) {
    let at = args.y_at + r * args.y_row + c;
    let v = x[args.x_at + r * args.x_row + c];
    switch (args.kind) {
      case 0u: { y[at] = y[at] + v; }
      case 1u: { y[at] = args.f * v; }
      default: { y[at] = args.f * tanh_(v / args.f); }
    }
  }
}
