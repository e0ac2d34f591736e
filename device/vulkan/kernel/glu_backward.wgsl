//apr:kernel dgu:rw dm:r gu:r | cols:u32 act:u32
//apr:include exp gates

// dg = dm·u·act'(g) and du = dm·act(g). dgu may be gu.
fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let r = group / chunks;
  let c0 = group % chunks * 512u;
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) {
    let g = gu[args.gu_at + r * args.gu_row + c];
    let u = gu[args.gu_at + r * args.gu_row + args.cols + c];
    let d = dm[args.dm_at + r * args.dm_row + c];
    var dg = 0.0;
    var du = 0.0;
    switch (args.act) {
      case 1u: {
        let s = gelu_sigmoid(g);
        let rise = 1.5957691216 * (1.0 + 0.134145 * g * g);
        dg = d * u * s * (1.0 + g * rise * (1.0 - s));
        du = d * g * s;
      }
      case 2u: {
        let a = min(g, 7.0);
        let s = sigmoid(1.702 * a);
        if (g <= 7.0) { dg = d * (clamp(u, -7.0, 7.0) + 1.0) * s * (1.0 + 1.702 * a * (1.0 - s)); }
        if (abs(u) <= 7.0) { du = d * a * s; }
      }
      case 3u: {
        let e = exp_(-abs(g)); // σ(1−σ) without the difference
        dg = d * u * (e / ((1.0 + e) * (1.0 + e)));
        du = d * sigmoid(g);
      }
      default: {
        let s = sigmoid(g);
        dg = d * u * s * (1.0 + g * (1.0 - s));
        du = d * g * s;
      }
    }
    dgu[args.dgu_at + r * args.dgu_row + c] = dg;
    dgu[args.dgu_at + r * args.dgu_row + args.cols + c] = du;
  }
}
