//apr:kernel sum:rw x:r | rows:u32 cols:u32

// sum[c] += Σ_r x[r, c], rows in ascending order. A lane has a column.
fn run(group: u32, lane: u32) {
  let c = group * 64u + lane;
  if (c >= args.cols) { return; }
  var v = sum[args.sum_at + c];
  for (var r = 0u; r < args.rows; r++) { v += x[args.x_at + r * args.x_row + c]; }
  sum[args.sum_at + c] = v;
}
