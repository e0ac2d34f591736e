//apr:kernel y:rw sums:r bias:r | n:u32 height:u32 parts:u32 add:u32 biased:u32

// y = Σ_p sums[p] + bias, or added to y, in ascending order: the parts of a product (see part_parts), each of height rows. A lane
// has one element.
fn run(group: u32, lane: u32) {
  let across = (args.n + 63u) / 64u;
  let row = group / across;
  let col = group % across * 64u + lane;
  if (col >= args.n) { return; }
  var v = 0.0;
  for (var p = 0u; p < args.parts; p++) { v += sums[args.sums_at + (p * args.height + row) * args.sums_row + col]; }
  if (args.biased != 0u) { v += bias[args.bias_at + col]; }
  let at = args.y_at + row * args.y_row + col;
  if (args.add != 0u) { v += y[at]; }
  y[at] = v;
}
