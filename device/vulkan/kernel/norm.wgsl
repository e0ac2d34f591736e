//apr:kernel y:rw rstd:rw sum:rw x:r delta:r w:r | dim:u32 heads:u32 eps:f32 normed:u32 kept:u32 added:u32 weighted:u32
//apr:include reduce

// sum = x + delta if added, v = sum or x; rstd = (mean(v²)+eps)^−½ of each group of dim columns, y = v·rstd·w. A group of lanes
// has a row's group of columns; y may be x.
fn run(group: u32, lane: u32) {
  let row = group / args.heads;
  let head = group % args.heads;
  let first = head * args.dim;
  var squares = 0.0;
  for (var c = lane; c < args.dim; c += 64u) {
    var v = x[args.x_at + row * args.x_row + first + c];
    if (args.added != 0u) {
      v += delta[args.delta_at + row * args.delta_row + first + c];
      sum[args.sum_at + row * args.sum_row + first + c] = v;
    }
    squares += v * v;
  }
  let r = 1.0 / sqrt(total(lane, squares) / f32(args.dim) + args.eps);
  if (args.kept != 0u && lane == 0u) { rstd[args.rstd_at + row * args.rstd_row + head] = r; }
  if (args.normed == 0u) { return; }
  for (var c = lane; c < args.dim; c += 64u) {
    var v = 0.0;
    if (args.added != 0u) { v = sum[args.sum_at + row * args.sum_row + first + c]; } else { v = x[args.x_at + row * args.x_row + first + c]; }
    v *= r;
    if (args.weighted != 0u) { v *= w[args.w_at + c]; }
    y[args.y_at + row * args.y_row + first + c] = v;
  }
}
