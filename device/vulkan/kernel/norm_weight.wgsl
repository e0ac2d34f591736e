//apr:kernel sums:rw dy:r x:r rstd:r | rows:u32 dim:u32 heads:u32

// sums[b, c] = Σ dy·x·rstd over the heads of 64 rows, in ascending order. A lane has a column.
fn run(group: u32, lane: u32) {
  let across = (args.dim + 63u) / 64u;
  let block = group / across;
  let c = group % across * 64u + lane;
  if (c >= args.dim) { return; }
  var v = 0.0;
  for (var r = block * 64u; r < min(block * 64u + 64u, args.rows); r++) {
    for (var h = 0u; h < args.heads; h++) {
      let at = h * args.dim + c;
      v += dy[args.dy_at + r * args.dy_row + at] * (x[args.x_at + r * args.x_row + at] * rstd[args.rstd_at + r * args.rstd_row + h]);
    }
  }
  sums[args.sums_at + block * args.sums_row + c] = v;
}
