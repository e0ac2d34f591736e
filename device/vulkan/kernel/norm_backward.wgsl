//apr:kernel dx:rw dy:r x:r rstd:r w:r | dim:u32 heads:u32 add:u32 weighted:u32
//apr:include reduce

// With x̂ = x·rstd, dx = rstd·(dy·w − x̂·mean(dy·w·x̂)) of each group of dim columns, or added to dx. dx may be dy.
fn run(group: u32, lane: u32) {
  let row = group / args.heads;
  let head = group % args.heads;
  let first = head * args.dim;
  let dys = args.dy_at + row * args.dy_row + first;
  let xs = args.x_at + row * args.x_row + first;
  let r = rstd[args.rstd_at + row * args.rstd_row + head];
  var dots = 0.0;
  for (var c = lane; c < args.dim; c += 64u) {
    var g = dy[dys + c];
    if (args.weighted != 0u) { g *= w[args.w_at + c]; }
    dots += g * (x[xs + c] * r);
  }
  let mean = total(lane, dots) / f32(args.dim);
  for (var c = lane; c < args.dim; c += 64u) {
    var g = dy[dys + c];
    if (args.weighted != 0u) { g *= w[args.w_at + c]; }
    var v = r * (g - x[xs + c] * r * mean);
    let at = args.dx_at + row * args.dx_row + first + c;
    if (args.add != 0u) { v += dx[at]; }
    dx[at] = v;
  }
}
