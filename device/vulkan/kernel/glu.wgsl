//apr:kernel m:rw gu:r | cols:u32 act:u32
//apr:include exp gates

// m = act(g)·u, g the first cols columns of gu and u the others.
fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let r = group / chunks;
  let c0 = group % chunks * 512u;
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) {
    let g = gu[args.gu_at + r * args.gu_row + c];
    let u = gu[args.gu_at + r * args.gu_row + args.cols + c];
    var y = 0.0;
    switch (args.act) {
      case 1u: { y = g * gelu_sigmoid(g) * u; }
      case 2u: {
        let a = min(g, 7.0);
        y = (clamp(u, -7.0, 7.0) + 1.0) * a * sigmoid(1.702 * a);
      }
      case 3u: { y = sigmoid(g) * u; }
      default: { y = g * sigmoid(g) * u; }
    }
    m[args.m_at + r * args.m_row + c] = y;
  }
}
